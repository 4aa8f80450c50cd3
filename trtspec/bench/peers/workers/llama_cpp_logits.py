"""llama_cpp_logits.py MODEL IDS WINDOW OUTPUT: the logits of a GGUF file behind every id, float32,
by llama.cpp, in windows of so many ids, each from an empty cache.

By the C interface of the library that xllamacpp contains. Parameters come from its own defaults and
go back as they came, so that what lies in these structs does not matter, only that they are no
larger than `Params`: both are passed in memory.
"""

import sys
from ctypes import CDLL, POINTER, Structure, c_bool, c_char_p, c_int8, c_int32, c_void_p, string_at
from importlib.util import find_spec
from pathlib import Path

THREADS = 2  # they change no sum: a row of a product is one thread's


class Params(Structure):
    _fields_ = (("bytes", c_int8 * 1024),)


class Batch(Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


FUNCTIONS = {
    "llama_backend_init": (None,),
    "llama_model_default_params": (Params,),
    "llama_context_default_params": (Params,),
    "llama_model_load_from_file": (c_void_p, c_char_p, Params),
    "llama_init_from_model": (c_void_p, c_void_p, Params),
    "llama_set_n_threads": (None, c_void_p, c_int32, c_int32),
    "llama_n_ctx": (c_int32, c_void_p),
    "llama_n_batch": (c_int32, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_batch_init": (Batch, c_int32, c_int32, c_int32),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits": (c_void_p, c_void_p),
}


def library():
    folder = Path(find_spec("xllamacpp").origin).parent
    found = CDLL(str(next(folder.glob("xllamacpp*.so"))))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def main(model, ids, window, output):
    llama = library()
    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
    if not loaded:
        sys.exit(f"llama.cpp cannot load {model}")
    context = llama.llama_init_from_model(loaded, llama.llama_context_default_params())
    llama.llama_set_n_threads(context, THREADS, THREADS)
    held = min(llama.llama_n_ctx(context), llama.llama_n_batch(context))
    if held < window:
        sys.exit(f"llama.cpp's usual context holds {held} tokens, a window has {window}")
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(loaded))
    batch = llama.llama_batch_init(window, 0, 1)
    with open(output, "wb") as file:
        for start in range(0, len(ids), window):
            rows = ids[start : start + window]
            batch.n_tokens = len(rows)
            for i, token in enumerate(rows):
                batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
            if llama.llama_decode(context, batch) != 0:
                sys.exit(f"llama.cpp failed behind id {start}")
            file.write(string_at(llama.llama_get_logits(context), 4 * len(rows) * vocabulary))


if __name__ == "__main__":
    given = [int(word) for word in Path(sys.argv[2]).read_text().split()]
    main(sys.argv[1], given, int(sys.argv[3]), sys.argv[4])
