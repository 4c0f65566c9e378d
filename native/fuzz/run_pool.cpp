// SPDX-License-Identifier: Apache-2.0
// The pool with limits that change while it works, for the thread sanitizer. Ends with 1 and a sentence where more
// threads worked than were allowed, or a sample was not called once; a wake-up that is lost makes it hang.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <thread>
#include <vector>

#include "../pool.h"

namespace {

void need(bool is_true, const char* what) {
    if (is_true) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// Several callers at once, each with batches of several lengths.
void run_callers(feedrate::Pool& pool, int batches, std::atomic<int>& most) {
    std::atomic<int> working{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
        callers.emplace_back([&, caller] {
            for (int i = 0; i < batches; ++i) {
                std::vector<std::atomic<int>> called(static_cast<size_t>(1 + (7 * i + caller) % 9));
                const bool is_done = pool.run(static_cast<int64_t>(called.size()), [&](int64_t sample) {
                    const int now = ++working;
                    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {}
                    std::this_thread::yield();
                    ++called[sample];
                    --working;
                });
                need(is_done, "an open pool did not run a batch");
                for (const auto& times : called) need(times == 1, "a sample was not called once");
            }
        });
    }
    for (auto& caller : callers) caller.join();
}

void limits_hold() {
    feedrate::Pool pool(4);
    for (const int limit : {1, 3, 2, 4, 1}) {
        pool.set_limit(limit);
        std::atomic<int> most{0};
        run_callers(pool, 200, most);
        need(most <= limit, "more threads worked than the limit allows");
    }
}

void limits_change_while_batches_run() {
    feedrate::Pool pool(4);
    std::atomic<bool> is_over{false};
    std::thread changer([&] {
        for (int i = 0; !is_over; ++i) pool.set_limit(1 + 5 * i % 4);
    });
    std::atomic<int> most{0};
    run_callers(pool, 1000, most);
    is_over = true;
    changer.join();
}

// A sample that waits for the next one ends only when a second thread is let in.
void a_higher_limit_wakes_parked_threads() {
    feedrate::Pool pool(2);
    pool.run(2, [](int64_t) {});
    pool.set_limit(1);
    pool.run(9, [](int64_t) {});
    std::mutex mutex;
    std::condition_variable changed;
    int begun = 0;
    std::thread caller([&] {
        pool.run(2, [&](int64_t) {
            std::unique_lock<std::mutex> lock(mutex);
            ++begun;
            changed.notify_all();
            changed.wait(lock, [&] { return begun == 2; });
        });
    });
    {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return begun == 1; });
    }
    pool.set_limit(2);
    caller.join();
}

void a_pool_with_parked_threads_closes() {
    for (int i = 0; i < 50; ++i) {
        feedrate::Pool pool(4);
        pool.run(8, [](int64_t) {});
        pool.set_limit(1 + i % 4);
        pool.run(8, [](int64_t) {});
        pool.close();
        pool.set_limit(4);
        need(!pool.run(1, [](int64_t) {}), "a closed pool ran a batch");
    }
}

void a_pool_that_rests_works_again() {
    feedrate::Pool pool(4);
    for (int i = 0; i < 50; ++i) {
        pool.set_limit(1 + i % 4);
        std::atomic<int> most{0};
        run_callers(pool, 3, most);
        std::thread changer([&] { pool.set_limit(4); });
        pool.rest();
        changer.join();
        pool.rest();
    }
    pool.close();
    pool.rest();
    need(!pool.run(1, [](int64_t) {}), "a closed pool that rested ran a batch");
}

}  // namespace

int main() {
    limits_hold();
    limits_change_while_batches_run();
    a_higher_limit_wakes_parked_threads();
    a_pool_with_parked_threads_closes();
    a_pool_that_rests_works_again();
    std::puts("fine");
}
