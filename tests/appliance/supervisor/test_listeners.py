"""The listening sockets."""

import socket
from pathlib import Path

import pytest

from appliance.supervisor.listeners import (
    ListenError,
    Listeners,
    bind_control_plane,
    bind_data_plane,
    bind_unix,
)


@pytest.fixture
def listeners():
    bound = Listeners()
    yield bound
    bound.close()


def test_a_bound_port_takes_connections_before_anybody_accepts(listeners: Listeners):
    bind_data_plane(listeners, "127.0.0.1", 0, gateways=1)

    socket.create_connection(("127.0.0.1", listeners.data_port), timeout=1).close()


def test_connections_of_both_planes_send_without_delay(listeners: Listeners):
    bind_data_plane(listeners, "127.0.0.1", 0, gateways=1)
    bind_control_plane(listeners, "127.0.0.1", 0)

    for listening in (*listeners.data, *listeners.admin):
        with socket.create_connection(listening.getsockname(), timeout=1):
            listening.settimeout(1)
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_each_gateway_gets_its_own_socket_on_the_same_port(listeners: Listeners):
    bind_data_plane(listeners, "127.0.0.1", 0, gateways=3)

    assert {s.getsockname()[1] for s in listeners.data} == {listeners.data_port}
    assert len({s.fileno() for s in listeners.data}) == 3


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_port_that_others_hold_is_refused_by_name(listeners: Listeners, gateways: int):
    other = Listeners()
    bind_data_plane(other, "127.0.0.1", 0, gateways=2)

    with pytest.raises(ListenError, match=f"port {other.data_port} on 127.0.0.1 is in use") as e:
        bind_data_plane(listeners, "127.0.0.1", other.data_port, gateways)

    assert "--port" in str(e.value)
    assert e.value.setting == "port"
    other.close()


def test_the_control_plane_names_its_own_flag(listeners: Listeners):
    bind_control_plane(listeners, "127.0.0.1", 0)

    with pytest.raises(ListenError, match="--admin-port"):
        bind_control_plane(Listeners(), "127.0.0.1", listeners.admin_port)


def test_an_address_that_is_not_ours_is_refused(listeners: Listeners):
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1"):
        bind_data_plane(listeners, "192.0.2.1", 0, gateways=1)
    with pytest.raises(ListenError, match="is not an address of this machine"):
        bind_data_plane(listeners, "no such host", 0, gateways=1)


def test_a_unix_socket_is_for_its_user_alone_and_replaces_a_stale_one(run_dir: Path):
    path = run_dir / "data.sock"
    bind_unix(path).close()

    bound = bind_unix(path)

    assert path.stat().st_mode & 0o777 == 0o600
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    client.close()
    bound.close()


def test_a_unix_socket_without_a_directory_is_refused(run_dir: Path):
    with pytest.raises(ListenError, match="cannot listen on"):
        bind_unix(run_dir / "missing" / "data.sock")
