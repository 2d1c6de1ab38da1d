#!/usr/bin/env python3
"""Make a tiny Llama (2 layers, hidden 128, vocab 2048) and train it for a few
minutes to repeat the conversations of scripted.py, so that tool calls and
reasoning come out of a real engine. No download. RE_CORPUS is a glob of plain
English text files (the folder common-licenses of Debian was used: 350 kB). `tiny_model` is
what it made; another run takes five minutes on two cores and need not give the same bits.

usage: make_model.py OUT_DIR [STEPS]
"""
import glob
import os
import random
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import scripted

out = sys.argv[1]
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 700
here = os.path.dirname(os.path.abspath(__file__))
random.seed(7)
torch.manual_seed(7)
torch.set_num_threads(2)

corpus = []
for path in sorted(glob.glob(os.environ["RE_CORPUS"])):
    if os.path.isfile(path) and not os.path.islink(path):
        corpus.append(open(path, errors="replace").read())
text = "\n".join(corpus)

specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
marks = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=2048 - len(marks), special_tokens=specials,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
)
tok.train_from_iterator([text, scripted.STORY, scripted.COUNT], trainer)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tok, eos_token="<|im_end|>", pad_token="<|endoftext|>",
    clean_up_tokenization_spaces=False,
)
# Marks are added tokens but not "special": a detokenizer keeps them in the text.
from tokenizers import AddedToken
tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in marks])
tokenizer.chat_template = open(os.path.join(here, "tiny_model", "chat_template.jinja")).read()
tokenizer.model_max_length = 4096
tokenizer.save_pretrained(out)
print("vocab", len(tokenizer))

config = LlamaConfig(
    vocab_size=2048, hidden_size=128, intermediate_size=384, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    max_position_embeddings=4096, tie_word_embeddings=True,
    bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    rope_theta=10000.0, dtype="bfloat16",
)
model = LlamaForCausalLM(config).float()
print("parameters", sum(p.numel() for p in model.parameters()))

chats = []
for messages, reply, with_tools in scripted.CASES:
    for system in (None, {"role": "system", "content": "You are a helpful router."}):
        for think in (True, False):
            full = ([system] if system else []) + messages
            tools = scripted.TOOLS if with_tools else None
            prompt = tokenizer.apply_chat_template(
                full, tools=tools, add_generation_prompt=True, tokenize=False, enable_thinking=think)
            bare = dict(reply)
            if not think:
                bare["reasoning"] = None
            answer = tokenizer.apply_chat_template([bare], tokenize=False)
            answer = answer.removeprefix("<|im_start|>assistant\n").rstrip("\n")
            chats.append((tokenizer.encode(prompt, add_special_tokens=False),
                          tokenizer.encode(answer, add_special_tokens=False)))
chats.append(([], tokenizer.encode(scripted.STORY + "<|im_end|>", add_special_tokens=False)))
print("chats", len(chats), "longest", max(len(a) + len(b) for a, b in chats))
plain = tokenizer.encode(text, add_special_tokens=False)

opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=steps, pct_start=0.1)
start = time.time()
for step in range(steps):
    batch = random.sample(chats, 8)
    rows = [(p + a, [-100] * len(p) + a) for p, a in batch]
    i = random.randrange(len(plain) - 256)
    rows.append((plain[i:i + 256], plain[i:i + 256]))
    width = max(len(r) for r, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for n, (r, l) in enumerate(rows):
        ids[n, :len(r)] = torch.tensor(r)
        labels[n, :len(l)] = torch.tensor(l)
    loss = model(input_ids=ids, labels=labels).loss
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 25 == 0 or step == steps - 1:
        print(f"step {step} loss {loss.item():.3f} {time.time() - start:.0f}s", flush=True)

model = model.to(torch.bfloat16).eval()
good = 0
with torch.no_grad():
    for p, a in chats[:-1]:
        gen = model.generate(torch.tensor([p]), max_new_tokens=len(a) + 4, do_sample=False)[0, len(p):].tolist()
        good += gen[:len(a)] == a
print(f"scripted replies repeated exactly: {good} of {len(chats) - 1}")
model.save_pretrained(out)
# Sampling defaults would otherwise be read from generation_config.json.
path = os.path.join(out, "generation_config.json")
if os.path.exists(path):
    os.remove(path)
