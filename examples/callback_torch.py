"""A task with a callback: it writes each validation's accuracy into notes.txt, beside the data.

horovodrun -np 2 python -m hvdtrain --task callback_torch:Watched --data.dir DIR
"""

from pathlib import Path

import horovod.torch as hvd
from wine_torch import Wine

from hvdtrain import events


class Watched(Wine):
    def open_data(self, data):
        self.notes = Path(data.dir) / "notes.txt"
        return super().open_data(data)

    def callbacks(self):
        return [self.note]

    def note(self, event):  # all ranks receive the same events in the same order; one of them writes
        match event:
            case events.Evaluated() if hvd.rank() == 0:
                with self.notes.open("a") as file:
                    file.write(f"step {event.step}: accuracy {event.values['accuracy']:.3f}\n")
