// SPDX-License-Identifier: Apache-2.0
// State that a fork must not carry over: its threads are gone in the child, and one of them may hold its mutex. A child
// sees by the process number that the state is its parent's, makes its own, and never destroys the parent's.
#pragma once

#include <unistd.h>

#include <atomic>

namespace feedrate {

template <class State>
class PerProcess {
public:
    PerProcess() : current_(new Owned) {}
    ~PerProcess() {
        Owned* owned = current_.load();
        if (owned->pid == getpid()) delete owned;
    }
    PerProcess(const PerProcess&) = delete;
    PerProcess& operator=(const PerProcess&) = delete;

    State& get() {
        const pid_t me = getpid();
        Owned* owned = current_.load();
        while (owned->pid != me) {
            Owned* fresh = new Owned;
            if (current_.compare_exchange_strong(owned, fresh)) return fresh->state;
            delete fresh;  // another thread of the child was first; `owned` is now its state
        }
        return owned->state;
    }

private:
    struct Owned {
        pid_t pid = getpid();
        State state;
    };
    std::atomic<Owned*> current_;
};

}  // namespace feedrate
