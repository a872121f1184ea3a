package sim_test

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
)

// sums are counters of requests and tokens.
type sums struct {
	Begun      int64 `json:"requests_begun"`
	Answered   int64 `json:"requests_answered"`
	Prompt     int64 `json:"prompt_tokens"`
	Cached     int64 `json:"cached_tokens"`
	Completion int64 `json:"completion_tokens"`
}

type counters struct {
	Total        sums
	Models, Tags map[string]sums
	InFlight     int `json:"in_flight"`
	MostInFlight int `json:"most_in_flight"`
}

func (s *sim1) counters() (c counters) {
	s.t.Helper()
	status, body := s.do(http.MethodGet, "/sim/counters", "")
	require.Equal(s.t, http.StatusOK, status)
	require.NoError(s.t, json.Unmarshal([]byte(body), &c))
	return c
}

func TestCounters(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	require.Equal(t, counters{Models: map[string]sums{}, Tags: map[string]sums{}}, s.counters())
	var r struct{ Usage usage }
	s.ok("/v1/completions", `{"prompt":"x y","max_tokens":3,"ignore_eos":true}`, &r)
	req := s.request(t.Context(), http.MethodPost, "/v1/completions", `{"prompt":["x","y"],"n":2,"max_tokens":5,"ignore_eos":true,"stream":true}`)
	req.Header.Set("X-Sim-Tag", "blue")
	resp, err := s.http.Do(req)
	require.NoError(t, err)
	st := &stream{t: t, resp: resp}
	st.drain()
	s.refused(http.MethodPost, "/v1/completions", `{"prompt":""}`, http.StatusBadRequest)
	blue := sums{Begun: 1, Answered: 1, Prompt: 2, Completion: 20}
	total := sums{Begun: 2, Answered: 2, Prompt: 2 + int64(r.Usage.Prompt), Completion: 23}
	require.Equal(t, counters{
		Total: total, Models: map[string]sums{modelName: total}, Tags: map[string]sums{"blue": blue}, MostInFlight: 1,
	}, s.counters())

	s.fault(`{"drop_after_tokens":5}`)
	_, err = s.raw("/v1/completions", stream20)
	require.Error(t, err)
	_, err = s.raw("/v1/completions", whole20)
	require.Error(t, err)
	s.fault(`{"drop_after_tokens":0,"error500":true}`)
	s.refused(http.MethodPost, "/v1/completions", whole20, http.StatusInternalServerError)
	got := s.counters()
	require.Equal(t, sums{Begun: 5, Answered: 2, Prompt: total.Prompt + 1, Completion: 28}, got.Total)
	require.Zero(t, got.InFlight)

	status, _ := s.do(http.MethodDelete, "/sim/counters", "")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, counters{Models: map[string]sums{}, Tags: map[string]sums{}}, s.counters())
}

// TestMostInFlight: an answer that a client has read is out of flight.
func TestMostInFlight(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for range 50 {
		_, err := s.raw("/v1/completions", whole20)
		require.NoError(t, err)
		_, err = s.raw("/v1/completions", stream20)
		require.NoError(t, err)
	}
	require.Equal(t, 1, s.counters().MostInFlight)

	slow := start(t, func(c *sim.Config) { c.Rates = engine.Rates{Decode: 20} })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			resp, err := slow.http.Do(slow.request(ctx, http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":5000,"ignore_eos":true}`))
			if err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	require.Eventually(t, func() bool { return slow.counters().InFlight == 3 }, patience, time.Millisecond)
	cancel()
	wg.Wait()
	require.Eventually(t, func() bool { return slow.counters().InFlight == 0 }, patience, time.Millisecond)
	require.Equal(t, 3, slow.counters().MostInFlight)
}
