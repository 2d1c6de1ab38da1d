"""The performance suite behind perf/run: scenarios, targets, batches, bars, pages."""
