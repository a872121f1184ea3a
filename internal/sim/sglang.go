package sim

import (
	"encoding/json"
	"net/http"
	"slices"

	"remuda/internal/sim/engine"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/openai"
)

// sglangTable is the table of an engine with SGLang's routes, which are in
// python/sglang/srt/entrypoints/http_server.py of github.com/sgl-project/sglang (commit
// 00a2ca2e56d5 of 2026): those that a shim needs, and the inference routes of the simulator that
// SGLang has in the same form. There are no metrics, as without --enable-metrics.
func (s *Server) sglangTable() []route {
	const get, post = http.MethodGet, http.MethodPost
	lacks := []string{"/metrics", "/version", "/is_sleeping", "/sleep", "/wake_up", "/rerank", "/v2/rerank", "/score",
		"/classify", "/pooling", "/v1/moderations", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations"}
	table := slices.DeleteFunc(s.table(), func(rt route) bool {
		return slices.Contains(lacks, rt.path) || rt.path == "/v1/responses/{id}" && rt.method == http.MethodDelete
	})
	return append(table,
		route{method: get, path: "/health_generate", handle: s.handleHealthGenerate},
		route{method: get, path: "/server_info", handle: s.handleServerInfo, early: true},
		route{method: get, path: "/v1/loads", handle: s.handleLoads},
		route{method: post, path: "/flush_cache", handle: s.handleFlushCache},
		route{method: post, path: "/release_memory_occupation", handle: s.handleRelease, body: jsonBody},
		route{method: post, path: "/resume_memory_occupation", handle: s.handleResume, body: jsonBody},
	)
}

// handleHealthGenerate computes one token. Without weights that is the end of the engine.
func (s *Server) handleHealthGenerate(w http.ResponseWriter, r *http.Request) {
	if s.sleep.asleep() {
		s.crash("a token without weights")
		cutOff() // where a test's crash returns
	}
	stream, err := s.engine.Submit(engine.Request{Quiet: true, Sequences: []engine.Sequence{{PromptTokens: 1, MaxTokens: 1}}})
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer stream.Close()
	if _, err := stream.Next(r.Context(), nil); err != nil {
		cutOff()
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) handleServerInfo(w http.ResponseWriter, _ *http.Request) {
	writeValue(w, map[string]any{
		"served_model_name": s.cfg.Model, "enable_memory_saver": true, "enable_weights_cpu_backup": true,
		"max_running_requests": s.cfg.MaxNumSeqs, "internal_states": []any{map[string]any{}}, "version": s.cfg.Version,
	})
}

func (s *Server) handleLoads(w http.ResponseWriter, _ *http.Request) {
	stats := s.engine.Stats()
	used, total := stats.UsedBlocks*s.cfg.BlockSize, stats.TotalBlocks*s.cfg.BlockSize
	writeValue(w, map[string]any{"version": s.cfg.Version, "loads": []any{map[string]any{
		"dp_rank": 0, "num_running_reqs": stats.Running, "num_waiting_reqs": stats.Waiting, "num_used_tokens": used,
		"num_total_tokens": used, "max_total_num_tokens": total, "max_running_requests": s.cfg.MaxNumSeqs,
		"token_usage": float64(used) / float64(total),
	}}})
}

func (s *Server) handleFlushCache(w http.ResponseWriter, _ *http.Request) {
	if stats := s.engine.Stats(); stats.Running+stats.Waiting > 0 {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte("Flush cache failed.\n"))
		return
	}
	_, _ = w.Write([]byte("Cache flushed.\n"))
}

// memoryTags reads the tags of a release or a resume, and holds the sleeper's busy slot.
func (s *Server) memoryTags(w http.ResponseWriter, r *http.Request) (tags []string, ok bool) {
	body, ok := s.input(w, r, jsonBody, refuse(w))
	if !ok {
		return nil, false
	}
	var in struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		writeError(w, openai.BadRequest("tags", "%v", err))
		return nil, false
	}
	s.sleep.hold(r)
	return in.Tags, true
}

// handleRelease frees everything, whatever the tags. SGLang's scheduler dies of a second release.
func (s *Server) handleRelease(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.memoryTags(w, r); !ok {
		return
	}
	defer s.sleep.release()
	if s.sleep.asleep() {
		s.crash("a release of what is released")
		cutOff() // where a test's crash returns
	}
	if err := s.fallAsleep(memory.LevelOffload); err != nil {
		cutOff() // as of a scheduler that died
	}
	writeValue(w, nil)
}

// handleResume: SGLang's scheduler dies of a resume of what was not released.
func (s *Server) handleResume(w http.ResponseWriter, r *http.Request) {
	tags, ok := s.memoryTags(w, r)
	if !ok {
		return
	}
	defer s.sleep.release()
	if !s.sleep.asleep() {
		s.crash("a resume of what was not released")
		cutOff() // where a test's crash returns
	}
	if err := s.wakeUp(r.Context(), tags, false); err != nil {
		cutOff()
	}
	writeValue(w, nil)
}
