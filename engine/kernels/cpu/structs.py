"""The structures of `native/abi.h` for ctypes, field by field in the same order."""

# ctypes reads `_fields_` by this name
import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class Segment(ctypes.Structure):
    """`qd_segment`."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("format", c_int32),
        ("rows", c_int32),
        ("width", c_int32),
        ("first_column", c_int32),
    )


class Linear(ctypes.Structure):
    """`qd_linear`."""

    _fields_ = (
        ("segments", ctypes.POINTER(Segment)),
        ("num_segments", c_int32),
        ("input", c_int32),
        ("width", c_int32),
        ("columns", c_int32),
    )


class Norm(ctypes.Structure):
    """`qd_norm`."""

    _fields_ = (("weight", c_void_p), ("epsilon", c_float), ("pad", c_int32))


class Layer(ctypes.Structure):
    """`qd_layer`."""

    _fields_ = (
        ("attention_norm", Norm),
        ("qkv", Linear),
        ("query_norm", Norm),
        ("key_norm", Norm),
        ("output", Linear),
        ("attention_out_norm", Norm),
        ("mlp_norm", Norm),
        ("gate_up", Linear),
        ("down", Linear),
        ("mlp_out_norm", Norm),
        ("cache", c_void_p),
        ("is_window", c_int32),
        ("pad", c_int32),
    )


class Model(ctypes.Structure):
    """`qd_model`."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("inner_size", c_int32),
        ("vocab_size", c_int32),
        ("activation", c_int32),
        ("window", c_int32),
        ("attention_scale", c_float),
        ("attention_softcap", c_float),
        ("logits_softcap", c_float),
        ("embedding_scale", c_float),
        ("frequencies", c_void_p),
        ("window_frequencies", c_void_p),
        ("rotary_factor", c_float),
        ("window_rotary_factor", c_float),
        ("embedding", Linear),
        ("final_norm", Norm),
        ("head", Linear),
        ("cache_dtype", c_int32),
        ("block_size", c_int32),
        ("num_blocks", c_int32),
        ("num_window_blocks", c_int32),
    )


class Request(ctypes.Structure):
    """`qd_request`."""

    _fields_ = (
        ("blocks", c_void_p),
        ("window_blocks", c_void_p),
        ("num_blocks", c_int32),
        ("first_row", c_int32),
        ("num_rows", c_int32),
        ("start_position", c_int32),
    )


class Update(ctypes.Structure):
    """`qd_update`."""

    _fields_ = (
        ("down", c_void_p),
        ("up", c_void_p),
        ("rank", c_int32),
        ("width", c_int32),
        ("first_column", c_int32),
        ("columns", c_int32),
    )


class UpdateList(ctypes.Structure):
    """`qd_update_list`."""

    _fields_ = (("updates", ctypes.POINTER(Update)), ("count", c_int64))


class AdapterRows(ctypes.Structure):
    """`qd_adapter_rows`."""

    _fields_ = (
        ("rows", c_void_p),
        ("lists", ctypes.POINTER(UpdateList)),
        ("num_rows", c_int64),
    )


class Step(ctypes.Structure):
    """`qd_step`."""

    _fields_ = (
        ("token_ids", c_void_p),
        ("requests", c_void_p),
        ("sampled_rows", c_void_p),
        ("logits", c_void_p),
        ("adapters", ctypes.POINTER(AdapterRows)),
        ("num_tokens", c_int32),
        ("num_requests", c_int32),
        ("num_sampled", c_int32),
        ("num_adapters", c_int32),
    )
