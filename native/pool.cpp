// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <sys/resource.h>

#include <csignal>
#include <ctime>
#include <initializer_list>
#include <system_error>

namespace feedrate {
namespace {

// Signals belong to the interpreter's threads: Python handles them in its main thread. Not so those that a thread
// causes itself: blocked, they would end the process before faulthandler could say where.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&blocked, fault);
        pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

// Linux alone gives every thread a priority of its own. A refusal changes nothing but who goes first.
void yield_cores([[maybe_unused]] int nice) {
#ifdef __linux__
    if (nice == 0) return;
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + nice);  // 0: this thread
#endif
}

}  // namespace

double thread_cpu_seconds() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

bool for_each(int64_t count, Pool* pool, const std::function<void(int64_t)>& work) {
    if (pool) return pool->run(count, work);
    for (int64_t i = 0; i < count; ++i) work(i);
    return true;
}

void Pool::serve(State& state, int number) {
    yield_cores(nice_);
    double counted = 0;
    std::unique_lock<std::mutex> lock(state.mutex);
    for (;;) {
        const bool is_parked = number >= limit_;
        // Thread 0 is never parked, and empties the queue.
        if (state.closing && (is_parked || state.queue.empty())) return;
        if (is_parked || state.queue.empty()) {
            (is_parked ? state.unparked : state.changed).wait(lock);
            continue;
        }
        Batch& batch = *state.queue.front();
        const int64_t first = batch.next++;
        if (first + 1 >= batch.count) state.queue.pop_front();
        const bool wanted = !state.cancelled;
        lock.unlock();
        if (wanted) (*batch.work)(first);
        const double used = thread_cpu_seconds();
        lock.lock();
        state.cpu_seconds += used - counted;
        counted = used;
        if (++batch.done == batch.count) batch.finished.notify_one();
    }
}

void Pool::start_threads(State& state) {
    const int limit = limit_;
    int number = static_cast<int>(state.threads.size());
    if (number >= limit) return;
    const SignalsBlocked blocked;
    state.threads.reserve(static_cast<size_t>(limit));
    try {
        for (; number < limit; ++number) state.threads.emplace_back(&Pool::serve, this, std::ref(state), number);
    } catch (const std::system_error&) {
        // The process may have no more threads; one is enough to go on.
        if (state.threads.empty()) throw;
    }
}

bool Pool::run(int64_t count, const std::function<void(int64_t)>& work) {
    if (closed_) return false;
    if (count <= 0) return true;
    State& state = state_.get();
    Batch batch{};
    batch.count = count;
    batch.work = &work;
    std::unique_lock<std::mutex> lock(state.mutex);
    if (state.closing || state.cancelled) return false;
    start_threads(state);  // not in set_limit(): they would get the cores that its caller's thread is bound to
    state.queue.push_back(&batch);
    state.changed.notify_all();
    batch.finished.wait(lock, [&] { return batch.done == batch.count; });
    return !state.cancelled;
}

void Pool::set_limit(int limit) {
    State& state = state_.get();
    {
        const std::lock_guard<std::mutex> lock(state.mutex);
        limit_ = limit;
    }
    // Threads that wait for work and are now to be parked find out when work next wakes them.
    state.unparked.notify_all();
}

double Pool::cpu_seconds() {
    State& state = state_.get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    return state.cpu_seconds;
}

void Pool::cancel() {
    State& state = state_.get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.cancelled = true;
}

void Pool::close() {
    closed_ = true;
    rest();
}

void Pool::rest() {
    State& state = state_.get();
    std::vector<std::thread> threads;
    {
        const std::lock_guard<std::mutex> lock(state.mutex);
        if (state.threads.empty() && !closed_) return;
        state.closing = true;
        threads.swap(state.threads);
    }
    state.changed.notify_all();
    state.unparked.notify_all();
    for (auto& thread : threads) thread.join();
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.closing = closed_;
}

}  // namespace feedrate
