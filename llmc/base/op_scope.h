/*
Hooks for profiling. Every op begins with a scope that tells the device's observer, if it has one, when the op begins
and ends and what it costs (op_cost.h):

  template <class T>
  void gelu_forward(Cpu& cpu, T* out, const T* inp, int64_t n) {
      const OpScope op(cpu, __func__, gelu_forward_cost<T>(n, Cpu::kExpFlops));

Kernels and library calls inside ops are scopes as well, and so are the phases of a step that contain the ops. Training
runs without an observer; then a scope is one branch that is never taken. Observers: profile.h, --profile.
*/
#pragma once
#include <cstdint>

// The minimum work of an op: every tensor read or written once, and the arithmetic. 0: not known.
struct OpCost {
    double bytes = 0, flops = 0;
    int64_t rows = 0, in = 0, out = 0;  // of a linear layer: N, C, OC; 0: of another op
    int64_t keys = 0, head_size = 0;    // of attention: the keys that the last query sees, and HS; 0: of another op
};

enum class SliceKind { phase, op, kernel, collective, copy };  // copy: beside the device's work, as collectives

class OpObserver {
public:
    virtual ~OpObserver() = default;
    // Scopes nest. `name` is a string literal or lives as long as one; `number`: of the step, micro-batch or block; -1:
    // none.
    virtual void begin(SliceKind kind, const char* name, const OpCost& cost, int64_t number) = 0;
    virtual void end() noexcept = 0;
};

class Scope {
public:
    Scope(OpObserver* observer, SliceKind kind, const char* name, const OpCost& cost = {}, int64_t number = -1)
        : observer_(observer) {
        if (observer_) [[unlikely]]
            observer_->begin(kind, name, cost, number);
    }
    ~Scope() {
        if (observer_) [[unlikely]]
            observer_->end();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

private:
    OpObserver* observer_;
};

struct OpScope : Scope {
    template <class Device>
    OpScope(const Device& device, const char* name, const OpCost& cost = {})
        : Scope(device.observer, SliceKind::op, name, cost) {}
};
// The name of a kernel launch and its own cost. Without a cost the kernel is all of its op, or the cost is not known.
struct KernelLabel {
    const char* name;
    OpCost cost;

    KernelLabel(const char* name, const OpCost& cost = {}) : name(name), cost(cost) {}
};

struct KernelScope : Scope {
    template <class Device>
    KernelScope(const Device& device, const KernelLabel& label)
        : Scope(device.observer, SliceKind::kernel, label.name, label.cost) {}
};
struct PhaseScope : Scope {
    template <class Device>
    PhaseScope(const Device& device, const char* name, int64_t number = -1)
        : Scope(device.observer, SliceKind::phase, name, {}, number) {}
};
