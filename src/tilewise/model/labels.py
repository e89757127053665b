"""What a model's scores stand for."""

# residual, regret, lambdarank: scores are log(tflops), the calibrated estimate's plus what the trees add; relative:
# log(tflops / the problem's best); log1p: log(1 + tflops)
LABELS = ("residual", "regret", "lambdarank", "relative", "log1p")
ESTIMATED = ("residual", "regret", "lambdarank")  # their scores are added to a calibrated estimate
EXTRA_LABELS = ("latency", "bandwidth")  # each predicted as a logarithm: of milliseconds, of GB/s
