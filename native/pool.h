// SPDX-License-Identifier: Apache-2.0
// Threads that take one sample at a time from a queue of batches.
//
// A batch is queued by run(), which waits for it. A thread takes the next sample of the oldest batch that has one left; when it
// has none left the batch leaves the queue (others may still work on its last samples) and the thread goes on with the next batch.
// Whoever finishes a batch's last sample wakes its caller. close() lets the queue run empty, then joins. cancel() lets the samples be that
// nobody has taken yet.
//
//   open --close()--> closing --queue empty, threads joined--> closed        (a child after fork() begins at open, without threads)
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "per_process.h"

namespace feedrate {

class Pool {
public:
    explicit Pool(int threads) : threads_(threads) {}
    ~Pool() { close(); }

    // Calls work(0) to work(count - 1), which must not throw, from the pool's threads; returns when all are done. False when the
    // pool is closed: nothing was called; or cancelled: not all were. Any number of callers at a time.
    bool run(int64_t count, const std::function<void(int64_t)>& work);
    void cancel();
    void close();

private:
    struct Batch {
        int64_t count;
        const std::function<void(int64_t)>* work;
        int64_t next = 0, done = 0;  // under the mutex
        std::condition_variable finished;
    };
    struct State {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<Batch*> queue;
        std::vector<std::thread> threads;
        bool closing = false, cancelled = false;
    };
    static void serve(State& state);
    void start_threads(State& state);

    int threads_;
    std::atomic<bool> closed_{false};  // outside of the state, so that a child knows it too
    PerProcess<State> state_;
};

}  // namespace feedrate
