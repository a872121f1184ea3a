package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"remuda/internal/sim/fault"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/metrics"
	"remuda/internal/sim/openai"
)

// Tags of a partial wake, as in vLLM.
const (
	tagWeights = "weights"
	tagKVCache = "kv_cache"
)

// sleeper is the sleep state. Its busy slot is held during a sleep or a wake,
// so that they never overlap; the rest is read at any time.
type sleeper struct {
	busy chan struct{}

	mu      sync.Mutex
	level   int // 0 while awake
	weights bool
	cache   bool // whether a partial wake has brought this back
}

func (p *sleeper) asleep() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.level > 0
}

func (p *sleeper) metric() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.level {
	case 0:
		return metrics.Awake
	case memory.LevelOffload:
		return metrics.WeightsOffloaded
	default:
		return metrics.DiscardAll
	}
}

// deepen notes a finished sleep and returns the level that holds.
func (p *sleeper) deepen(level int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.level = max(p.level, level)
	p.weights, p.cache = false, false
	return p.level
}

// regain notes a finished (partial) wake and tells whether the engine is awake.
func (p *sleeper) regain(weights, cache bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.weights = p.weights || weights
	p.cache = p.cache || cache
	if p.weights && p.cache {
		p.level = 0
	}
	return p.level == 0
}

// hold takes the busy slot; a request that ends first is cut off.
func (p *sleeper) hold(r *http.Request) {
	select {
	case p.busy <- struct{}{}:
	case <-r.Context().Done():
		cutOff()
	}
}

func (p *sleeper) release() { <-p.busy }

func (s *Server) handleIsSleeping(w http.ResponseWriter, _ *http.Request) {
	writeValue(w, map[string]bool{"is_sleeping": s.sleep.asleep()})
}

func (s *Server) handleSleep(w http.ResponseWriter, r *http.Request) {
	level := memory.LevelOffload
	switch q := r.URL.Query().Get("level"); q {
	case "", "1":
	case "2":
		level = memory.LevelDiscard
	default:
		writeError(w, openai.BadRequest("level", "level must be 1 or 2, got %q.", q))
		return
	}
	s.sleep.hold(r)
	defer s.sleep.release()
	switch s.faults.Get().Sleep {
	case fault.SleepError:
		s.log.Warn("sleep fails on demand", "reason", "fault sleep=error")
		writeError(w, openai.Internal("the fault switch says that the engine cannot be put to sleep"))
		return
	case fault.SleepSlow:
		pause(r.Context(), fault.Duration(fault.Slow))
	}
	err := s.fallAsleep(level)
	// vllm#28714, #45520: the answer is 200 while the engine dies.
	if err != nil && !errors.Is(err, errInFlight) {
		writeError(w, openai.Internal("%v", err))
		return
	}
	w.WriteHeader(http.StatusOK)
}

var errInFlight = errors.New("requests in flight: the weights are gone under a running batch; drain first")

// fallAsleep puts the engine to sleep, whose busy slot is held. The engine dies of an error.
func (s *Server) fallAsleep(level int) error {
	begin := time.Now()
	if n := s.engine.Sleep(); n > 0 {
		err := fmt.Errorf("sleep with %d %w", n, errInFlight)
		s.dead.Store(true)
		s.engine.AbortAll()
		s.die(err)
		return err
	}
	leak := s.faults.Get().LeakBytes
	if err := s.bank.Load().Sleep(level, leak); err != nil {
		err = fmt.Errorf("sleep: %w", err)
		s.die(err)
		return err
	}
	now := s.sleep.deepen(level)
	device, host := s.memoryUsage()
	s.log.Info("asleep", "level", now, "device_bytes", device, "host_bytes", host, "leaked_bytes", leak, "took", time.Since(begin))
	return nil
}

func (s *Server) handleWake(w http.ResponseWriter, r *http.Request) {
	tags := r.URL.Query()["tags"]
	for _, t := range tags {
		if t != tagWeights && t != tagKVCache {
			writeError(w, openai.BadRequest("tags", "tags must be %q or %q, got %q.", tagWeights, tagKVCache, t))
			return
		}
	}
	s.sleep.hold(r)
	defer s.sleep.release()
	if !s.sleep.asleep() {
		w.WriteHeader(http.StatusOK)
		return
	}
	s.waitOut(r.Context(), func(f fault.Set) bool { return f.Wake == fault.WakeHang })
	if s.faults.Get().Wake == fault.WakeSlow {
		pause(r.Context(), fault.Duration(fault.Slow))
	}
	var corrupt bool
	switch s.faults.Get().Wake {
	case fault.WakeError:
		s.log.Warn("wake fails on demand", "reason", "fault wake=error")
		writeError(w, openai.Internal("wake failed: the fault switch says so"))
		return
	case fault.WakeCrash:
		s.crash("fault wake=crash")
		cutOff() // where a test's crash returns
	case fault.WakeCorrupt:
		corrupt = true
	}
	if err := s.wakeUp(r.Context(), tags, corrupt); err != nil {
		writeError(w, openai.Internal("%v", err))
		return
	}
	w.WriteHeader(http.StatusOK)
}

// wakeUp brings back what the tags name, which is everything without any; the sleeper's busy
// slot is held. The engine dies of an error.
func (s *Server) wakeUp(ctx context.Context, tags []string, corrupt bool) error {
	begin := time.Now()
	weights := len(tags) == 0 || slices.Contains(tags, tagWeights)
	cache := len(tags) == 0 || slices.Contains(tags, tagKVCache)
	var err error
	if weights {
		err = s.bank.Load().Wake(context.WithoutCancel(ctx), corrupt)
	}
	if err == nil && cache {
		err = s.bank.Load().WakeCache()
	}
	if err != nil {
		err = fmt.Errorf("wake: %w", err)
		s.dead.Store(true)
		s.die(err)
		return err
	}
	awake := s.sleep.regain(weights, cache)
	if awake {
		s.engine.Wake()
	}
	device, _ := s.memoryUsage()
	s.log.Info("woken", "tags", tags, "awake", awake, "device_bytes", device, "took", time.Since(begin))
	return nil
}

// gpuList is the body of /sim/gpus.
type gpuList struct {
	GPUs []string `json:"gpus"`
}

// handleGPUs tells on which GPUs the engine is, or will be once it wakes.
func (s *Server) handleGPUs(w http.ResponseWriter, r *http.Request) {
	s.hangAll(r.Context())
	writeValue(w, gpuList{*s.gpus.Load()})
}

// handleMove makes the next wake be on other GPUs. No real engine can do so yet.
func (s *Server) handleMove(w http.ResponseWriter, r *http.Request) {
	body, ok := s.input(w, r, jsonBody, refuse(w))
	if !ok {
		return
	}
	var list gpuList
	if err := json.Unmarshal(body, &list); err != nil || len(list.GPUs) == 0 || slices.Contains(list.GPUs, "") {
		writeError(w, openai.BadRequest("gpus", `gpus must be a list of GPUs' UUIDs, as in {"gpus": ["GPU-…"]}.`))
		return
	}
	s.sleep.hold(r)
	defer s.sleep.release()
	err := memory.ErrAwake
	if s.sleep.asleep() {
		err = s.bank.Load().Move(list.GPUs)
	}
	if err != nil {
		writeError(w, openai.HTTPError(http.StatusConflict, "the engine cannot move: "+err.Error()))
		return
	}
	s.gpus.Store(&list.GPUs)
	s.log.Info("moved: the next wake is on other GPUs", "gpus", list.GPUs)
	writeValue(w, list)
}

func (s *Server) handleFaults(w http.ResponseWriter, r *http.Request) {
	set := s.faults.Get()
	switch r.Method {
	case http.MethodPost:
		body, ok := s.readBody(w, r, jsonBody, refuse(w))
		if !ok {
			return
		}
		var err error
		if set, err = s.faults.Update(func(f fault.Set) (fault.Set, error) { return f.Merge(body) }); err != nil {
			writeError(w, openai.BadRequest("", "%v", err))
			return
		}
		s.log.Warn("faults changed", "faults", fmt.Sprintf("%+v", set))
	case http.MethodDelete:
		var err error
		if set, err = s.faults.Update(func(fault.Set) (fault.Set, error) { return fault.Set{}, nil }); err != nil {
			writeError(w, openai.Internal("%v", err))
			return
		}
		s.log.Info("faults cleared")
	}
	writeValue(w, set)
	if r.Method == http.MethodPost && set.Crash {
		_ = http.NewResponseController(w).Flush()
		s.crash("fault crash")
	}
	if r.Method == http.MethodPost && set.TakeBytes > 0 {
		_ = http.NewResponseController(w).Flush()
		if err := memory.TakeHost(set.TakeBytes); err != nil {
			s.log.Error("cannot take host memory on demand", "bytes", set.TakeBytes, "error", err)
		}
	}
}
