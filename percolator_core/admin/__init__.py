"""Administration for people and schedulers: status, browsing, row history, quarantine, reruns, traces."""
