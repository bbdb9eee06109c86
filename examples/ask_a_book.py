"""A book is read once, kept, and asked: its keys and values are mapped from files.

python examples/ask_a_book.py
"""

import tempfile
import time
from pathlib import Path

import longspan
from longspan.bundled import heldout_text

model, tokenizer = longspan.load_bundled()
text, middle = heldout_text(), heldout_text().index("\n", 30_000)
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
question = "What is the pass key? The pass key is"

with tempfile.TemporaryDirectory() as folder:
    book = Path(folder) / "book.longspan"

    start = time.perf_counter()
    book_text = text[:middle] + needle + text[middle:60_000]
    # Chunks of 32 tokens suit the bundled toy; for a real model leave the method out.
    method = "longheads:score=bounds"
    doc = longspan.read(model, tokenizer, book_text, method=method, out=book)
    print(f"read {doc.tokens:,} tokens in {time.perf_counter() - start:.1f} s")

    answer = doc.ask(question, max_new_tokens=8, passages=True)
    print("asked:", answer.text.strip()[:5], f"in {answer.seconds:.2f} s")
    print("the answer attended most to:")
    for passage in answer.passages:
        print(f"  {passage.lift:.0f} times as much:", " ".join(passage.text.split()))

    # Another day: with another model, tokenizer or method it would be refused.
    model, tokenizer = longspan.load_bundled()
    start = time.perf_counter()
    doc = longspan.Document.open(book, model, tokenizer)
    opened = time.perf_counter() - start
    answer = doc.ask(question, max_new_tokens=8)
    print("opened, asked again:", answer.text.strip()[:5], f"({opened:.2f} s)")

    # A branch that reads on; the book stays as it is.
    branch = doc.fork()
    branch.append(needle.replace("71428", "35190") * 2)
    print("appended:", branch.ask(question, 8).text.strip()[:5])
