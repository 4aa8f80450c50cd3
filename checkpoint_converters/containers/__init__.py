"""Files that hold tensors: headers checked first, tensors read on demand."""
