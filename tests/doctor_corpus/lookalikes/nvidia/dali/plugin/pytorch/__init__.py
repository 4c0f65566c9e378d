# SPDX-License-Identifier: Apache-2.0
"""DALI's iterators in small, for machines without a GPU: names, arguments and order of calls are those of
nvidia-dali 2.4.0, what makes the batches are threads here."""

from concurrent.futures import ThreadPoolExecutor


class Pipeline:
    """`make(number)` returns the outputs of one batch; each of its samples is the work of one thread."""

    def __init__(self, make, batch_size, num_threads, prefetch_queue_depth=2, batches=None):
        self.max_batch_size, self.num_threads = batch_size, num_threads
        self.prefetch_queue_depth = prefetch_queue_depth
        self._make, self._batches, self._number, self._queue = make, batches, 0, []
        self._pool = ThreadPoolExecutor(num_threads)

    def schedule(self):
        while len(self._queue) < self.prefetch_queue_depth:
            samples = range(self._number * self.max_batch_size, (self._number + 1) * self.max_batch_size)
            self._queue.append([self._pool.submit(self._make, sample) for sample in samples])
            self._number += 1

    def outputs(self):
        self.schedule()
        return [sample.result() for sample in self._queue.pop(0)]

    def is_over(self):
        return self._batches is not None and self._number - len(self._queue) >= self._batches

    def reset(self):
        self._number, self._queue = 0, []


class _DaliBaseIterator:
    def __init__(self, pipelines, size=-1, reader_name=None, auto_reset=False, prepare_first_batch=True):
        self._pipes = pipelines if isinstance(pipelines, list) else [pipelines]
        self.batch_size = self._pipes[0].max_batch_size
        self._size, self._auto_reset, self._prepare_first_batch = size, auto_reset, prepare_first_batch
        self._counter, self._ever_consumed = 0, False

    def next(self):
        return self.__next__()

    def __iter__(self):
        if self._counter != 0 and self._ever_consumed:
            self.reset()
        return self

    def reset(self):
        self._counter = 0
        for pipe in self._pipes:
            pipe.reset()


class DALIGenericIterator(_DaliBaseIterator):
    def __init__(
        self, pipelines, output_map, size=-1, reader_name=None, auto_reset=False, prepare_first_batch=True
    ):
        self.output_map = output_map
        _DaliBaseIterator.__init__(self, pipelines, size, reader_name, auto_reset, prepare_first_batch)
        self._first_batch = None
        if self._prepare_first_batch:
            self._first_batch = DALIGenericIterator.__next__(self)
            self._ever_consumed = False

    def __next__(self):
        import torch

        self._ever_consumed = True
        if self._first_batch is not None:
            batch, self._first_batch = self._first_batch, None
            return batch
        if any(pipe.is_over() for pipe in self._pipes):
            raise StopIteration
        self._counter += self.batch_size
        columns = [zip(*pipe.outputs(), strict=True) for pipe in self._pipes]
        return [
            {name: torch.stack(column) for name, column in zip(self.output_map, outputs, strict=True)}
            for outputs in columns
        ]


class DALIClassificationIterator(DALIGenericIterator):
    def __init__(self, pipelines, size=-1, reader_name=None, auto_reset=False, prepare_first_batch=True):
        super().__init__(pipelines, ["data", "label"], size, reader_name, auto_reset, prepare_first_batch)


class DALIRaggedIterator(_DaliBaseIterator):
    def __next__(self):
        raise StopIteration
