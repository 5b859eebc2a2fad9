import torch
from jaxtyping import install_import_hook

# Before anything imports them: shapes are checked in tests, and cost nothing at run time.
install_import_hook(["rankcollapse.measures", "rankcollapse.states"], "beartype.beartype")

torch.set_num_threads(1)
