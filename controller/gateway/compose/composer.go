package compose

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
	"remuda/controller/pipeline"
)

// Defaults of Config.
const (
	DefaultMaxAnswer    = 4 << 20          // a million tokens of text
	DefaultCommentAfter = 2 * time.Second  // sooner nobody wonders
	DefaultCommentEvery = 10 * time.Second // below the idle timeouts of usual proxies
)

// Config says how to answer.
type Config struct {
	// Next serves the steps' requests. It must return when a request's context ends, and may
	// panic with http.ErrAbortHandler as a handler of net/http may.
	Next http.Handler
	// Logger, nil: none.
	Logger hclog.Logger
	// MaxAnswer is how many bytes one call may answer; 0: DefaultMaxAnswer. A longer answer
	// fails its step.
	MaxAnswer int
	// CommentAfter is when a client that waits for a stream gets its first comment line,
	// CommentEvery the time between two; 0: the defaults.
	CommentAfter, CommentEvery time.Duration
	// RetryAfter is when a client should come back whose pipeline had no memory; 0 does not say.
	RetryAfter time.Duration
}

// Memory is what the answers of the steps of one request take their memory from.
type Memory interface {
	// Take takes so many bytes, false where there are none. They are given back when Serve has returned,
	// by its caller.
	Take(bytes int) bool
}

// Composer answers requests to pipelines. Its methods may be called from several goroutines
// at once.
type Composer struct {
	cfg Config
	// pipelines by name; the map is replaced and never changed.
	pipelines atomic.Pointer[map[string]entry]
}

// entry is a pipeline, or what is wrong with it.
type entry struct {
	source string
	parsed *pipeline.Pipeline
	err    error
}

// New returns a composer without pipelines.
func New(cfg Config) (*Composer, error) {
	var errs []error
	if cfg.Next == nil {
		errs = append(errs, errors.New("next is nil: must be the handler of the steps' requests"))
	}
	if cfg.MaxAnswer < 0 {
		errs = append(errs, fmt.Errorf("max answer is %d bytes: must be 0 or more", cfg.MaxAnswer))
	}
	if cfg.CommentAfter < 0 || cfg.CommentEvery < 0 {
		errs = append(errs, fmt.Errorf("comment after is %s and comment every is %s: must be 0 or more", cfg.CommentAfter, cfg.CommentEvery))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("compose: %w", err)
	}
	if cfg.MaxAnswer == 0 {
		cfg.MaxAnswer = DefaultMaxAnswer
	}
	if cfg.CommentAfter == 0 {
		cfg.CommentAfter = DefaultCommentAfter
	}
	if cfg.CommentEvery == 0 {
		cfg.CommentEvery = DefaultCommentEvery
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	c := &Composer{cfg: cfg}
	c.pipelines.Store(&map[string]entry{})
	return c, nil
}

// Set replaces all pipelines. Requests that run go on with theirs. One that cannot be read
// is logged, and its requests are answered with what is wrong; that happens where the
// controller is of another version than this program. It returns the names of those that
// are gone, sorted.
func (c *Composer) Set(all []api.GatewayPipeline) (gone []string) {
	old := *c.pipelines.Load()
	now := make(map[string]entry, len(all))
	for _, p := range all {
		if e, ok := old[p.Name]; ok && e.source == p.Source {
			now[p.Name] = e
			continue
		}
		e := entry{source: p.Source}
		e.parsed, e.err = pipeline.Parse(p.Name, []byte(p.Source))
		if e.err == nil && e.parsed.Name != p.Name {
			e.err = fmt.Errorf("its source defines pipeline %q", e.parsed.Name)
		}
		if e.err != nil {
			c.cfg.Logger.Error("invalid pipeline: its requests fail", "pipeline", p.Name, "error", e.err)
		}
		now[p.Name] = e
	}
	c.pipelines.Store(&now)
	for name := range old {
		if _, ok := now[name]; !ok {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone
}

// Has tells whether there is a pipeline of that name.
func (c *Composer) Has(name string) bool {
	_, ok := (*c.pipelines.Load())[name]
	return ok
}

// Names are those of all pipelines, sorted.
func (c *Composer) Names() []string { return slices.Sorted(maps.Keys(*c.pipelines.Load())) }

// inside marks the context of a step's request.
type inside struct{}

// Inside tells whether a request is a step's, and of which pipeline.
func Inside(ctx context.Context) (name string, ok bool) {
	name, ok = ctx.Value(inside{}).(string)
	return name, ok
}

// Serve answers a request to the pipeline of that name, and returns when it was answered;
// false where there is no such pipeline, and nothing was done then. body is r's body, which
// was read already; it is not kept. The request's ID is the X-Request-Id of w's header, or else
// of r's. The answers of its steps take their memory from memory.
//
// cut reports that the stream ended early. The caller must then cut the connection, so that the client
// sees that the answer is incomplete.
func (c *Composer) Serve(w http.ResponseWriter, r *http.Request, name string, body []byte, memory Memory) (handled, cut bool) {
	e, ok := (*c.pipelines.Load())[name]
	if !ok {
		return false, false
	}
	x := &exchange{c: c, w: w, r: r, name: name, memory: memory, began: time.Now(), running: map[string]int{}}
	switch outer, nested := Inside(r.Context()); {
	case nested:
		x.refuse(&failure{status: http.StatusBadRequest, typ: typeRequest, code: "pipeline_in_pipeline",
			message: fmt.Sprintf("pipeline %q calls pipeline %q: a step can only call a model", outer, name)})
	case e.err != nil:
		x.refuse(&failure{status: http.StatusInternalServerError, typ: typeServer, code: "pipeline_invalid",
			message: fmt.Sprintf("pipeline %q is invalid; ask its operator to apply it again: %v", name, e.err)})
	default:
		cut = x.serve(e.parsed, body)
	}
	return true, cut
}
