package dialect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// sglang speaks to SGLang, versions of 2026. What it relies on is in these files of
// github.com/sgl-project/sglang, below python/sglang/srt, at commit 00a2ca2e56d5 of 2026:
//   - entrypoints/http_server.py has the routes. GET /health answers 503 until the warm-up is
//     over. Then it makes a token of its own and takes a second at least, unless
//     SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is false; GET /health_generate always does.
//     GET /server_info asks each scheduler and makes no request. GET /ping is answered by the
//     HTTP server alone.
//   - managers/scheduler_components/weight_updater.py releases and resumes memory by tags. It
//     asserts that there is no request, and removes the tags that it resumes from a set: the
//     scheduler dies, and the engine with it, of a release with a request in flight and of a
//     resume of what was not released. It answers when the change is made.
//   - managers/scheduler.py flushes the cache on the same condition as it releases memory, and
//     answers 400 where there is a request.
//   - server_args.py: without enable_memory_saver a release frees nothing and is answered with
//     200. Without enable_weights_cpu_backup the weights are garbage after the resume.
//   - entrypoints/v1_loads.py (since pull request 16976 of January 2026) reports the requests
//     of each data-parallel rank, as managers/load_snapshot.py has them: a scheduler writes them
//     with each prefill, every --load-snapshot-publish-interval steps of a decode (15), and when
//     it becomes idle. The gauges of /metrics are older.
type sglang struct {
	*api
	model string
	turn  turn
	// cannotSleep is why the engine has no sleep mode, once Load has found out: a string.
	cannotSleep atomic.Value
	// state is a memoryState. The engine does not report it.
	state atomic.Int32
}

var _ Dialect = (*sglang)(nil)

// memoryState is where the engine's GPU memory is, as far as this process knows.
type memoryState int32

const (
	held     memoryState = iota // an engine that starts has its memory
	changing                    // a release or a resume is in progress
	released
	lost // a release or a resume failed
)

var (
	// memoryTags are what sleeps: the same for the release and the resume.
	memoryTags = map[string][]string{"tags": {"kv_cache", "weights"}}

	errMemoryLost = errors.New("a release or a resume of the engine's memory has failed and SGLang does not report what it holds: restart the engine")
)

// startPoll is the pause between two looks at an engine that warms up, which logs each of them.
const startPoll = 250 * time.Millisecond

func newSGLang(a *api, c Config) (Dialect, error) {
	return &sglang{api: a, model: c.Model, turn: newTurn()}, nil
}

func (s *sglang) Name() string { return SGLang }

func (s *sglang) CanSleep() bool { return s.whyNoSleep() == "" }

func (s *sglang) whyNoSleep() string {
	why, _ := s.cannotSleep.Load().(string)
	return why
}

func (s *sglang) SleepWaits() bool { return false }

func (s *sglang) CanMove() bool { return false }

func (s *sglang) Move(context.Context, []string) error { return ErrCannotMove }

// Healthy asks the schedulers. A scheduler that copies its weights answers only afterwards, so
// that during a change the HTTP server has to do.
func (s *sglang) Healthy(ctx context.Context) error {
	path := "/server_info"
	if memoryState(s.state.Load()) == changing {
		path = "/ping"
	}
	if _, err := s.call(ctx, http.MethodGet, path, nil); err != nil {
		return fmt.Errorf("engine is not healthy: %w", err)
	}
	return nil
}

// Load waits until the engine has warmed up, and finds out whether it can sleep.
func (s *sglang) Load(ctx context.Context) error {
	if err := s.turn.take(ctx); err != nil {
		return err
	}
	defer s.turn.give()
	if err := s.warmedUp(ctx); err != nil {
		return err
	}
	if err := s.listed(ctx, s.model); err != nil {
		return err
	}
	var info struct {
		MemorySaver   bool `json:"enable_memory_saver"`
		WeightsBackup bool `json:"enable_weights_cpu_backup"`
	}
	if err := s.get(ctx, "/server_info", &info); err != nil {
		return fmt.Errorf("read the engine's arguments: %w", err)
	}
	var missing []string
	if !info.MemorySaver {
		missing = append(missing, "--enable-memory-saver")
	}
	if !info.WeightsBackup {
		missing = append(missing, "--enable-weights-cpu-backup")
	}
	why := ""
	if len(missing) > 0 {
		why = "start the engine with " + strings.Join(missing, " and ")
	}
	s.cannotSleep.Store(why)
	s.state.Store(int32(held)) // also of another process, after the last one has ended
	return nil
}

func (s *sglang) warmedUp(ctx context.Context) error {
	for warming := false; ; warming = true {
		_, err := s.call(ctx, http.MethodGet, "/health", nil)
		switch {
		case err == nil:
			return nil
		case warming && ctx.Err() != nil:
			return fmt.Errorf("the engine has not finished its warm-up: %w", context.Cause(ctx))
		case !hasStatus(err, http.StatusServiceUnavailable):
			return fmt.Errorf("engine is not healthy: %w", err)
		}
		select {
		case <-ctx.Done(): // the next call fails
		case <-time.After(startPoll):
		}
	}
}

func (s *sglang) Serving(ctx context.Context) error {
	if err := s.Healthy(ctx); err != nil {
		return err
	}
	if err := s.listed(ctx, s.model); err != nil {
		return err
	}
	asleep, err := s.Sleeping(ctx)
	if err == nil && asleep {
		err = fmt.Errorf("engine is asleep: model %q cannot serve", s.model)
	}
	return err
}

// Sleep releases the memory of the weights, which the engine keeps in host memory, and of
// the KV cache.
func (s *sglang) Sleep(ctx context.Context) error {
	if err := s.turn.take(ctx); err != nil {
		return err
	}
	defer s.turn.give()
	asleep, err := s.Sleeping(ctx)
	if err != nil || asleep {
		return err
	}
	if why := s.whyNoSleep(); why != "" {
		return fmt.Errorf("%w: %s", ErrNoSleep, why)
	}
	u, err := s.Usage(ctx)
	if err != nil {
		return fmt.Errorf("cannot check whether the engine is idle: %w", err)
	}
	if u.InFlight() > 0 {
		return fmt.Errorf("%w: %d running, %d waiting; drain it before it sleeps", ErrBusy, u.Running, u.Waiting)
	}
	if _, err := s.call(ctx, http.MethodPost, "/flush_cache", nil); err != nil {
		if hasStatus(err, http.StatusBadRequest) {
			err = fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return fmt.Errorf("flush the engine's cache before it sleeps: %w", err)
	}
	if err := s.change(ctx, "/release_memory_occupation", released); err != nil {
		return fmt.Errorf("put the engine to sleep: %w", err)
	}
	return s.Healthy(ctx)
}

// Wake resumes the memory and has the engine make a token with it.
func (s *sglang) Wake(ctx context.Context) error {
	if err := s.turn.take(ctx); err != nil {
		return err
	}
	defer s.turn.give()
	asleep, err := s.Sleeping(ctx)
	if err != nil {
		return err
	}
	if !asleep {
		return s.Healthy(ctx)
	}
	if err := s.change(ctx, "/resume_memory_occupation", held); err != nil {
		return fmt.Errorf("wake the engine: %w", err)
	}
	if _, err := s.call(ctx, http.MethodGet, "/health_generate", nil); err != nil {
		return fmt.Errorf("the woken engine made no token: %w", err)
	}
	return nil
}

func (s *sglang) change(ctx context.Context, path string, to memoryState) error {
	s.state.Store(int32(changing))
	if _, err := s.call(ctx, http.MethodPost, path, memoryTags); err != nil {
		s.state.Store(int32(lost))
		return err
	}
	s.state.Store(int32(to))
	return nil
}

// Sleeping tells what this process has made of the engine: SGLang does not report it.
func (s *sglang) Sleeping(context.Context) (bool, error) {
	state := memoryState(s.state.Load())
	if state == lost {
		return false, errMemoryLost
	}
	return state == released, nil
}

// rankLoad is what a data-parallel rank has to do. A count is missing where the answer has
// another shape.
type rankLoad struct {
	Running     *int `json:"num_running_reqs"`
	Waiting     *int `json:"num_waiting_reqs"`
	MaxRunning  int  `json:"max_running_requests"`
	UsedTokens  int  `json:"num_used_tokens"`
	TotalTokens int  `json:"num_total_tokens"`
}

func (s *sglang) loads(ctx context.Context) ([]rankLoad, error) {
	var answer struct {
		Loads []rankLoad `json:"loads"`
	}
	err := s.get(ctx, "/v1/loads?include=core", &answer)
	if hasStatus(err, http.StatusNotFound) {
		return nil, fmt.Errorf("%w its requests: it needs a version of SGLang with GET /v1/loads, of 2026 or later: %w", ErrUnknown, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the engine's load: %w", err)
	}
	if len(answer.Loads) == 0 {
		return nil, fmt.Errorf("%w its requests: response of GET /v1/loads has no loads", ErrUnknown)
	}
	return answer.Loads, nil
}

// Usage adds up the ranks. A scheduler's KV cache grows with each chunk of a prefill and
// with each token.
func (s *sglang) Usage(ctx context.Context) (Usage, error) {
	loads, err := s.loads(ctx)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	for _, l := range loads {
		if l.Running == nil || l.Waiting == nil || *l.Running < 0 || *l.Waiting < 0 {
			return Usage{}, fmt.Errorf("%w its requests: a rank in the response of GET /v1/loads has no counts num_running_reqs and num_waiting_reqs", ErrUnknown)
		}
		u.Running += *l.Running
		u.Waiting += *l.Waiting
		u.Progress += fmt.Sprintf("%d/%d ", l.UsedTokens, l.TotalTokens)
	}
	return u, nil
}

// Slots adds up the limits of the ranks.
func (s *sglang) Slots(ctx context.Context) (int, error) {
	loads, err := s.loads(ctx)
	if errors.Is(err, ErrUnknown) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the engine's slots: %w", err)
	}
	slots := 0
	for _, l := range loads {
		slots += max(l.MaxRunning, 0)
	}
	return slots, nil
}
