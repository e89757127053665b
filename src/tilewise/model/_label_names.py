"""Labels: the quantities that a model's scores and additional trees predict."""

# residual, regret, lambdarank: scores are log(TFLOPS), the cost model's plus the trees'; relative: log(TFLOPS / the
# problem's best); log1p: log(1 + TFLOPS)
LABELS = ("residual", "regret", "lambdarank", "relative", "log1p")
COST_MODEL_LABELS = ("residual", "regret", "lambdarank")  # labels whose scores are added to a cost model
# Labels whose scores order a problem's kernels on a level of their own: further trees, the scale, predict that level.
SCALED_LABELS = ("lambdarank", "relative")
EXTRA_LABELS = ("latency", "bandwidth")  # each predicted as a logarithm: of milliseconds, of GB/s
