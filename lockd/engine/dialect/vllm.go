package dialect

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
)

// vllm speaks to vLLM, and to engines that offer its surface. The routes for
// sleeping exist only with VLLM_SERVER_DEV_MODE=1, and work only with
// --enable-sleep-mode. What it relies on is in these files of
// github.com/vllm-project/vllm, below vllm, each at a commit of its own:
//   - entrypoints/serve/dev/sleep/api_router.py (e7a47b821ef4) has POST /sleep, POST /wake_up and
//     GET /is_sleeping. A comment there says that a change may not be complete when it is answered.
//   - entrypoints/serve/instrumentator/health.py (98b137c61dcf): GET /health answers 503 once the
//     engine core is dead.
//   - v1/metrics/loggers.py (a6f0308cfe80) sets the gauges of requests, and counts the tokens, with each
//     step of the engine core. The counters are there, at 0, from the start.
type vllm struct {
	*api
	model string
	turn  turn
	// noSleep is set once the engine answered that it has no such route.
	noSleep atomic.Bool
}

var _ Dialect = (*vllm)(nil)

func newVLLM(a *api, c Config) (Dialect, error) {
	return &vllm{api: a, model: c.Model, turn: newTurn()}, nil
}

func (v *vllm) Name() string { return VLLM }

func (v *vllm) CanSleep() bool { return !v.noSleep.Load() }

func (v *vllm) SleepWaits() bool { return false }

func (v *vllm) CanMove() bool { return false }

func (v *vllm) Move(context.Context, []string) error { return ErrCannotMove }

// Healthy asks /health, which vLLM answers with 503 once its engine process
// has died.
func (v *vllm) Healthy(ctx context.Context) error {
	if _, err := v.call(ctx, http.MethodGet, "/health", nil); err != nil {
		return fmt.Errorf("engine is not healthy: %w", err)
	}
	return nil
}

// Load checks that the engine serves the model under its name: vLLM loads it
// before its server answers.
func (v *vllm) Load(ctx context.Context) error {
	if err := v.listed(ctx, v.model); err != nil {
		return err
	}
	_, err := v.Sleeping(ctx) // finds out whether it can
	return err
}

func (v *vllm) Serving(ctx context.Context) error {
	if err := v.Healthy(ctx); err != nil {
		return err
	}
	if err := v.listed(ctx, v.model); err != nil {
		return err
	}
	asleep, err := v.Sleeping(ctx)
	if err == nil && asleep {
		err = fmt.Errorf("engine is asleep: model %q cannot serve", v.model)
	}
	return err
}

// Sleep puts the engine to sleep at level 1, which keeps the weights in host
// memory.
func (v *vllm) Sleep(ctx context.Context) error {
	if err := v.turn.take(ctx); err != nil {
		return err
	}
	defer v.turn.give()
	asleep, err := v.Sleeping(ctx)
	if err != nil || asleep {
		return err
	}
	if !v.CanSleep() {
		return fmt.Errorf("%w: start the engine with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1", ErrNoSleep)
	}
	u, err := v.Usage(ctx)
	if err != nil {
		return fmt.Errorf("cannot check whether the engine is idle: %w", err)
	}
	if u.InFlight() > 0 {
		return fmt.Errorf("%w: %d running, %d waiting; drain it before it sleeps", ErrBusy, u.Running, u.Waiting)
	}
	if _, err := v.call(ctx, http.MethodPost, "/sleep?level=1", nil); err != nil {
		return fmt.Errorf("put the engine to sleep: %w", err)
	}
	return v.settle(ctx, true)
}

func (v *vllm) Wake(ctx context.Context) error {
	if err := v.turn.take(ctx); err != nil {
		return err
	}
	defer v.turn.give()
	asleep, err := v.Sleeping(ctx)
	if err != nil {
		return err
	}
	if asleep {
		if _, err := v.call(ctx, http.MethodPost, "/wake_up", nil); err != nil {
			return fmt.Errorf("wake the engine: %w", err)
		}
	}
	return v.settle(ctx, false)
}

// settle waits until the engine says that it sleeps, or that it does not:
// vLLM may answer before the change is done. It asks for the engine's health
// last, because a crashed engine's server may live on for a while.
func (v *vllm) settle(ctx context.Context, want bool) error {
	what := "the engine accepted the wake and still reports that it is asleep"
	if want {
		what = "the engine accepted the sleep and still reports that it is awake"
	}
	err := poll(ctx, what, func() (bool, error) {
		asleep, err := v.Sleeping(ctx)
		return asleep == want, err
	})
	if err != nil {
		return err
	}
	return v.Healthy(ctx)
}

func (v *vllm) Sleeping(ctx context.Context) (bool, error) {
	if v.noSleep.Load() {
		return false, nil
	}
	var state struct {
		Sleeping *bool `json:"is_sleeping"`
	}
	err := v.get(ctx, "/is_sleeping", &state)
	switch {
	case hasStatus(err, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented):
		v.noSleep.Store(true)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("check whether the engine is asleep: %w", err)
	case state.Sleeping == nil:
		return false, fmt.Errorf(`check whether the engine is asleep: response of GET /is_sleeping has no "is_sleeping"`)
	}
	return *state.Sleeping, nil
}

func (v *vllm) Usage(ctx context.Context) (Usage, error) {
	page, err := v.call(ctx, http.MethodGet, "/metrics", nil)
	if hasStatus(err, http.StatusNotFound) {
		return Usage{}, fmt.Errorf("%w its usage: %w", ErrUnknown, err)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("read the engine's metrics: %w", err)
	}
	return parseUsage(page)
}

// Slots asks for vLLM's configuration, which it shows in development mode:
// max_num_seqs of each data-parallel rank that this server feeds. Versions
// that show it only as text, or not at all, do not say.
func (v *vllm) Slots(ctx context.Context) (int, error) {
	var info struct {
		Config json.RawMessage `json:"vllm_config"`
	}
	err := v.get(ctx, "/server_info?config_format=json", &info)
	if hasStatus(err, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the engine's slots: %w", err)
	}
	return slotsOf(info.Config), nil
}

// slotsOf reads vLLM's configuration: 0 for text, or any other shape.
func slotsOf(raw json.RawMessage) int {
	var config struct {
		Scheduler struct {
			MaxNumSeqs int `json:"max_num_seqs"`
		} `json:"scheduler_config"`
		Parallel struct {
			Ranks      int  `json:"data_parallel_size"`
			LocalRanks int  `json:"data_parallel_size_local"`
			External   bool `json:"data_parallel_external_lb"`
			Hybrid     bool `json:"data_parallel_hybrid_lb"`
		} `json:"parallel_config"`
	}
	if json.Unmarshal(raw, &config) != nil {
		return 0
	}
	p := config.Parallel
	ranks := p.Ranks
	switch {
	case p.External:
		ranks = 1
	case p.Hybrid:
		ranks = p.LocalRanks
	}
	return max(config.Scheduler.MaxNumSeqs, 0) * max(ranks, 1)
}
