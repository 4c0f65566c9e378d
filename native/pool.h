// SPDX-License-Identifier: Apache-2.0
// Threads that take one sample at a time from a queue of batches.
//
// run() queues a batch and waits for it. A thread takes the next sample of the oldest batch. With its last sample
// taken, a batch leaves the queue; the thread that finishes the last one wakes the caller. rest() waits until the
// queue is empty, then joins the threads; the next run() starts others, after close() none does. cancel() drops the
// samples that no thread has taken.
//
// Threads whose number is below the limit work. The others are parked on a condition variable of their own, so that no
// batch wakes them. A thread that is no longer below the limit parks after its sample.
//
//   open --rest()--> closing --queue empty, threads joined--> open        (a forked child is open, without threads)
//   open --close()--> closing --queue empty, threads joined--> closed
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
    // `nice` is added to the priority of the threads, as nice(1) counts.
    explicit Pool(int threads, int nice = 0) : nice_(nice), limit_(threads) {}
    ~Pool() { close(); }

    // Calls work(0) to work(count - 1), which must not throw, from the pool's threads; returns when all are done. False
    // when the pool is closed: nothing was called; or cancelled: not all were. Any number of callers at a time.
    bool run(int64_t count, const std::function<void(int64_t)>& work);
    // From now on at most `limit` threads, at least one, take samples.
    void set_limit(int limit);
    // The CPU time that the threads took, each until the end of its last sample.
    double cpu_seconds();
    void cancel();
    // No run() may be under way.
    void rest();
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
        std::condition_variable changed, unparked;  // for threads below the limit, and for the others
        std::deque<Batch*> queue;
        std::vector<std::thread> threads;
        double cpu_seconds = 0;
        bool closing = false, cancelled = false;
    };
    void serve(State& state, int number);
    void start_threads(State& state);

    // Outside of the state, so that a child knows them too.
    const int nice_;
    std::atomic<int> limit_;  // changed under the mutex
    std::atomic<bool> closed_{false};
    PerProcess<State> state_;
};

// The same in the calling thread where `pool` is null.
bool for_each(int64_t count, Pool* pool, const std::function<void(int64_t)>& work);

// The CPU time that the calling thread has taken.
double thread_cpu_seconds();

}  // namespace feedrate
