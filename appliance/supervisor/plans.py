"""Settings into the desired fleet: which engines and gateways shall run, and how."""

from pathlib import Path

from appliance.config.paths import model_dir, weight_cache_dir
from appliance.config.settings import EngineSettings, Settings
from appliance.control_link.gateway_config import GatewayConfig
from appliance.control_link.messages import Limits, SloTargets
from appliance.model_store.resolve import ResolvedModel, resolve
from appliance.supervisor.fleet import CLIENT_NAME, FleetPlan
from appliance.supervisor.health import HealthLimits
from appliance.supervisor.listeners import Listeners
from appliance.supervisor.managed_engine import EnginePlan
from appliance.supervisor.managed_gateway import GatewayPlan
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address


def resolve_models(settings: Settings) -> list[ResolvedModel]:
    """Find every engine's model, in order of the engines; hub models are downloaded if need be.

    Raises:
        ModelStoreError: a model cannot be found or downloaded.
    """
    directory = model_dir(settings.model_dir)
    return [
        resolve(each.model or settings.model, directory, revision=settings.revision)
        for each in engine_list(settings)
    ]


def engine_list(settings: Settings) -> list[EngineSettings]:
    """Return one entry per engine: the `[[engines]]` tables, or `num_engines` alike."""
    if settings.engines:
        return settings.engines
    return [EngineSettings.model_validate({})] * settings.num_engines


def plan_fleet(
    settings: Settings, models: list[ResolvedModel], run_dir: Path, listeners: Listeners
) -> FleetPlan:
    """Return the desired fleet."""
    return FleetPlan(
        engines=_engine_plans(settings, models, run_dir),
        gateways=_gateway_plans(settings, run_dir, listeners),
        limits=Limits(
            max_queued=max(1, settings.max_queued // settings.gateways),
            requests_per_minute=settings.requests_per_minute / settings.gateways,
            tokens_per_minute=settings.tokens_per_minute / settings.gateways,
            hold_s=settings.hold_s,
        ),
        health=HealthLimits(hang_s=settings.hang_s, start_timeout_s=settings.start_timeout_s),
        on_asleep=settings.on_asleep,
        auth_required=not settings.no_auth,
        adapter_roots=tuple(root.absolute() for root in settings.adapter_root),
        profile_store_bytes=settings.profile_store_bytes,
        slo=SloTargets(ttft_s=settings.slo.ttft_ms / 1e3, tpot_s=settings.slo.tpot_ms / 1e3),
    )


def _gateway_name(index: int) -> str:
    return f"gateway-{index}"


def _engine_plans(
    settings: Settings, models: list[ResolvedModel], run_dir: Path
) -> list[EnginePlan]:
    names = [CLIENT_NAME, *(_gateway_name(index) for index in range(settings.gateways))]
    clients = tuple(
        ClientEndpoint(
            name=name, input=input_address(run_dir, name), output=output_address(run_dir, name)
        )
        for name in names
    )
    return [
        _engine_plan(f"e{index}", settings, own, model, clients)
        for index, (own, model) in enumerate(zip(engine_list(settings), models, strict=True))
    ]


def _engine_plan(
    engine_id: str,
    settings: Settings,
    own: EngineSettings,
    model: ResolvedModel,
    clients: tuple[ClientEndpoint, ...],
) -> EnginePlan:
    shared_names = [] if own.model else settings.served_model_name
    served_names = tuple(own.served_model_name or shared_names or [model.name])
    weight_cache = weight_cache_dir(settings.weight_cache)
    config = EngineConfig(
        engine_id=engine_id,
        epoch=0,  # issued at each start
        model=str(model.path),
        model_name=served_names[0],
        clients=clients,
        device=own.device or settings.device,
        dtype=own.dtype or settings.dtype,
        max_model_len=own.max_model_len or settings.max_model_len,
        kv_cache_bytes=own.kv_cache_bytes or settings.kv_cache_bytes,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_threads=own.num_threads or settings.num_threads,
        heartbeat_s=settings.heartbeat_s,
        policy=settings.policy,
        reserved_seqs=settings.reserved_seqs,
        tenant_weights=settings.tenant_weights,
        prefix_caching=settings.prefix_caching,
        long_prefill_threshold=settings.long_prefill_threshold,
        predict_lengths=settings.predict_lengths,
        speculative_tokens=settings.speculative_tokens,
        max_loras=settings.max_loras if settings.adapter_root else 0,
        max_lora_rank=settings.max_lora_rank,
        max_cpu_loras=settings.max_cpu_loras,
        log_format="json",  # the supervisor reads what its children write
        log_level=settings.log_level,
        quantization=own.quantization or settings.quantization,
        kv_cache_dtype=own.kv_cache_dtype or settings.kv_cache_dtype,
        kernels=own.kernels or settings.kernels,
        weight_cache_dir=None if weight_cache is None else str(weight_cache),
        weight_cache_bytes=settings.weight_cache_bytes,
    )
    return EnginePlan(config, served_names)


def _gateway_plans(settings: Settings, run_dir: Path, listeners: Listeners) -> list[GatewayPlan]:
    unix = listeners.data_unix
    return [
        GatewayPlan(
            GatewayConfig(
                name=_gateway_name(index),
                index=index,
                epoch=0,  # issued at each start
                run_dir=str(run_dir),
                tcp_fd=listening.fileno(),
                unix_fd=None if unix is None else unix.fileno(),
                cors_origins=tuple(settings.cors_origin),
                strict_parameters=settings.strict_parameters,
                tls_cert=None if settings.tls_cert is None else str(settings.tls_cert),
                tls_key=None if settings.tls_key is None else str(settings.tls_key),
                drain_s=settings.drain_s,
                log_level=settings.log_level,
                log_format="json",
            )
        )
        for index, listening in enumerate(listeners.data)
    ]
