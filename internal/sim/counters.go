package sim

import (
	"net/http"
	"sync"

	"remuda/internal/sim/openai"
)

// tagHeader is the request header whose value has sums of its own.
const tagHeader = "X-Sim-Tag"

// counters are exact sums over the inference routes.
type counters struct {
	mu       sync.Mutex
	total    sums
	models   map[string]*sums
	tags     map[string]*sums
	inFlight int
	most     int
}

// sums count requests and the tokens that were sent for them.
type sums struct {
	// Begun counts accepted requests: their model is served and their parameters are
	// valid.
	Begun int64 `json:"requests_begun"`
	// Answered counts those whose answer was sent to its end.
	Answered int64 `json:"requests_answered"`
	// The tokens are those of the usage of every answer. A stream that breaks off counts
	// with what was sent of it, and any other answer that is not sent counts nothing.
	Prompt     int64 `json:"prompt_tokens"`
	Cached     int64 `json:"cached_tokens"`
	Completion int64 `json:"completion_tokens"`
}

// report is the answer of GET /sim/counters.
type report struct {
	Total        sums            `json:"total"`
	Models       map[string]sums `json:"models"`
	Tags         map[string]sums `json:"tags"`
	InFlight     int             `json:"in_flight"`
	MostInFlight int             `json:"most_in_flight"`
}

// handleCounters answers GET /sim/counters and DELETE /sim/counters, which also sets the
// sums to zero and the most requests in flight to those that are in flight now.
func (s *Server) handleCounters(w http.ResponseWriter, r *http.Request) {
	writeValue(w, s.counters.report(r.Method == http.MethodDelete))
}

func (c *counters) report(reset bool) report {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := report{
		Total: c.total, Models: map[string]sums{}, Tags: map[string]sums{},
		InFlight: c.inFlight, MostInFlight: c.most,
	}
	for name, v := range c.models {
		out.Models[name] = *v
	}
	for name, v := range c.tags {
		out.Tags[name] = *v
	}
	if reset {
		c.total, c.models, c.tags, c.most = sums{}, nil, nil, c.inFlight
	}
	return out
}

// enter counts a request in flight.
func (c *counters) enter(tag string) *tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight++
	c.most = max(c.most, c.inFlight)
	return &tally{counters: c, tag: tag}
}

// tally is one request's part of the counters.
type tally struct {
	counters   *counters
	model, tag string // empty for none
	left       bool
}

// add changes all sums that the request belongs to.
func (t *tally) add(change func(*sums)) {
	c := t.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.total)
	change(part(&c.models, t.model))
	if t.tag != "" {
		change(part(&c.tags, t.tag))
	}
}

func part(m *map[string]*sums, name string) *sums {
	if *m == nil {
		*m = map[string]*sums{}
	}
	v, ok := (*m)[name]
	if !ok {
		v = new(sums)
		(*m)[name] = v
	}
	return v
}

func (t *tally) begin(model string) {
	t.model = model
	t.add(func(s *sums) { s.Begun++ })
}

func (t *tally) tokens(u openai.Usage) {
	t.add(func(s *sums) {
		s.Prompt += int64(u.Prompt)
		s.Cached += int64(u.Cached)
		s.Completion += int64(u.Completion)
	})
}

// answered counts the answer and takes the request out of flight. It comes before the
// last byte is sent, so that a client that has read the answer finds it counted.
func (t *tally) answered() {
	t.add(func(s *sums) { s.Answered++ })
	t.leave()
}

// handOver is a tally that takes the place of t: t is out of flight and the other one in.
func (t *tally) handOver() *tally {
	t.counters.mu.Lock()
	defer t.counters.mu.Unlock()
	t.left = true
	return &tally{counters: t.counters, model: t.model, tag: t.tag}
}

// leave takes the request out of flight; later calls have no effect.
func (t *tally) leave() {
	t.counters.mu.Lock()
	defer t.counters.mu.Unlock()
	if !t.left {
		t.left = true
		t.counters.inFlight--
	}
}
