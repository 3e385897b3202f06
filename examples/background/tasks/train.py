"""Stands for a training of hours, with a progress bar; it saves its model when interrupted."""

import json
import sys
import time

EPOCHS, BATCHES = 100_000, 20

epoch, loss = 0, 1.0
try:
    for epoch in range(1, EPOCHS + 1):
        for batch in range(1, BATCHES + 1):
            time.sleep(0.01)
            bar = "#" * batch + "." * (BATCHES - batch)
            print(f"\repoch {epoch} [{bar}] {100 * batch // BATCHES:3}%", end="", file=sys.stderr)
        print(file=sys.stderr)
        loss *= 0.5
        print(f"epoch {epoch}: loss {loss:.3f}{', converged' if loss < 0.05 else ''}")
except KeyboardInterrupt:
    with open("model.json", "w") as file:
        json.dump({"epoch": epoch, "loss": loss}, file)
    print("saved model.json")
    raise
