// Package prom asks a Prometheus server what engines say of themselves.
//
// It asks the two queries of the capacity analyzer's description (the peaks of KV usage and
// of the queue over one minute), those of the running requests, and when each replica was
// last scraped. It guarantees:
//
//   - All queries of a model are answered or the model is unknown: no half of an answer is
//     used.
//   - A replica that is dead and still in the server's memory is stale or gone, by the
//     server's own clock.
//   - Series of another model are a finding that raises an alarm, and never an idle model.
//   - Time and size of an answer are bounded. Nothing is written to the server.
package prom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/observe/kept"
	"remuda/internal/replica"
)

// Config says which server to ask, and how.
type Config struct {
	// Address is the server's URL, also with a path before /api/v1/query. Required.
	Address string
	// Token is a bearer token; User and Password are for basic authentication. At most one
	// of both ways.
	Token, User, Password string
	// Headers are sent with each query, as X-Scope-OrgID.
	Headers map[string]string
	// CACert is a PEM file of the authority that signed the server's certificate; empty:
	// the system's.
	CACert string
	// ModelLabel is the label with the model's name where it is not the dialect's, and
	// Match are labels that all series must have, as namespace.
	ModelLabel string
	Match      []enginemetrics.Matcher
	// ReplicaLabels name a replica, the first one that a series has counts; empty:
	// replica, pod, pod_name, instance. Where the controller has the model the value must be
	// the replica's name, its ID, or its Consul service ID.
	ReplicaLabels []string
	// Window of the peaks, 0 is one minute. StaleAfter is how old a replica's last scrape
	// may be, 0 is 30 seconds: raise it where the server scrapes less often than every 10.
	Window, StaleAfter time.Duration
	// Every is how often a model that somebody asks for is asked for again in the
	// background, MaxAge how old an answer may be, IdleAfter how long a model is asked for
	// that nobody wants.
	Every, MaxAge, IdleAfter time.Duration
	// Timeout bounds the queries of one model. Pause is for how long a failure is
	// remembered.
	Timeout, Pause time.Duration
	// Concurrency is how many models are asked for at once in the background, MaxModels how
	// many are kept at hand, MaxBytes how large an answer may be.
	Concurrency, MaxModels, MaxBytes int
	// HTTPClient, nil: one that is made from the above.
	HTTPClient *http.Client
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// DefaultConfig has the reasons beside the numbers; Address is left to the caller.
func DefaultConfig() Config {
	return Config{
		Every:       4 * time.Second,  // nomad-autoscaler evaluates every 10 s: two chances in between
		MaxAge:      9 * time.Second,  // below that, so that no evaluation sees the one before it
		IdleAfter:   10 * time.Minute, // twice nomad-autoscaler's cooldown, in which it does not ask
		Timeout:     5 * time.Second,
		Pause:       time.Second,
		Concurrency: 4, // each asks four queries at once; a server runs 20 by default
		MaxModels:   10_000,
		MaxBytes:    enginemetrics.DefaultMaxBytes,
	}
}

func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := endpoint(c.Address); err != nil {
		errs = append(errs, err)
	}
	if c.Token != "" && c.User != "" {
		bad("token and user are both set: set only one")
	}
	if c.Password != "" && c.User == "" {
		bad("password is set and user is not: set both")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if name == "" || strings.ContainsAny(name, " :\r\n") || strings.ContainsAny(c.Headers[name], "\r\n\x00") {
			bad("header %q: must have a valid name and a value without line breaks", name)
		}
	}
	if strings.ContainsAny(c.Token+c.User+c.Password, "\r\n\x00") {
		bad("token, user or password contains a line break or NUL")
	}
	if c.MaxBytes < 1 {
		bad("max bytes is %d: must be 1 or more", c.MaxBytes)
	}
	if c.Window < 0 || c.StaleAfter < 0 {
		bad("window is %s and stale after is %s: must be 0 (the default) or more", c.Window, c.StaleAfter)
	}
	return errors.Join(errs...)
}

// Source is an observe.Reporter.
type Source struct {
	cfg   Config
	api   *client
	cache *kept.Cache[asked, enginemetrics.Reports]
}

var _ observe.Reporter = (*Source)(nil)

// asked is what is asked of the server for one set of series.
type asked struct {
	// Shown is the model's name in the series.
	Shown   string
	Dialect string
	Match   []enginemetrics.Matcher
}

// New checks cfg; it talks to nobody.
func New(cfg Config) (*Source, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	api, err := newClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	s := &Source{cfg: cfg, api: api}
	s.cache, err = kept.New(kept.Config[asked, enginemetrics.Reports]{
		Fetch: s.fetch, Every: cfg.Every, MaxAge: cfg.MaxAge, IdleAfter: cfg.IdleAfter, Timeout: cfg.Timeout, Pause: cfg.Pause,
		Concurrency: cfg.Concurrency, MaxKeys: cfg.MaxModels, Now: cfg.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	return s, nil
}

// Name implements observe.Reporter.
func (*Source) Name() string { return "prometheus" }

// Run keeps answers at hand until ctx ends, and returns its error. Report works without it.
func (s *Source) Run(ctx context.Context) error {
	defer s.api.http.CloseIdleConnections()
	return s.cache.Run(ctx)
}

// Report answers what the server knows of a model's engines. Engines whose dialect is not
// told are taken for vLLM's: a query needs names.
func (s *Source) Report(ctx context.Context, q observe.Question) (observe.Report, error) {
	var out observe.Report
	asked, err := s.questions(q)
	if err != nil {
		return observe.Report{}, fmt.Errorf("query Prometheus for model %q: %w", q.Model, err)
	}
	for _, one := range asked {
		key, err := json.Marshal(one.asked)
		if err != nil {
			return observe.Report{}, fmt.Errorf("query Prometheus for model %q: %w", q.Model, err)
		}
		r, err := s.cache.Get(ctx, string(key), one.asked)
		if err != nil {
			return observe.Report{}, fmt.Errorf("query Prometheus for model %q: %w", q.Model, err)
		}
		if r.Nameless > 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("%d series have no label that names a replica and are ignored: must have one of %s",
				r.Nameless, strings.Join(s.replicaLabels(), ", ")))
		}
		for _, w := range r.Warnings {
			out.Notes = append(out.Notes, "Prometheus warning: "+w)
		}
		out.Findings = append(out.Findings, r.Findings...)
		for _, v := range r.Views {
			out.Engines = append(out.Engines, observe.Reported{View: v, Variant: cmp.Or(one.variant, observe.DefaultVariant), Slots: one.slots,
				// Dead, or not scraped any more: without a list of those that live, the number of
				// replicas tells which.
				Gone: q.Replicas == nil && v.Class == enginemetrics.ClassStale})
		}
	}
	if q.Replicas == nil {
		return out, nil
	}
	var matched int
	out.Engines, matched = known(out.Engines, q.Replicas)
	if matched == 0 && len(out.Engines) > 0 && len(q.Replicas) > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("Prometheus reports %d replicas, such as %q, and the controller has none of them: the label must be the replica's name, such as %q, or its ID",
			len(out.Engines), out.Engines[0].View.Replica, q.Replicas[0]))
	}
	return out, nil
}

// question is one set of series, and whose they are.
type question struct {
	asked
	variant string
	slots   int
}

// questions are one for each job group or, where the controller has the model, one for each
// dialect of its variants.
func (s *Source) questions(q observe.Question) ([]question, error) {
	var out []question
	add := func(variant, dialect string, slots int, match []enginemetrics.Matcher) {
		if dialect == "" {
			dialect = "vllm"
		}
		if d, err := enginemetrics.Lookup(dialect); err == nil && len(d.Metrics) == 0 {
			return // there is nothing to ask for
		}
		all := append(slices.Clone(s.cfg.Match), match...)
		slices.SortFunc(all, func(a, b enginemetrics.Matcher) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
		})
		out = append(out, question{asked{q.Shown, dialect, slices.Compact(all)}, variant, slots})
	}
	switch {
	case q.Replicas != nil:
		dialects := []string{}
		for _, d := range q.Dialects {
			dialects = append(dialects, d)
		}
		if len(dialects) == 0 {
			dialects = []string{q.Dialect}
		}
		slices.Sort(dialects)
		for _, d := range slices.Compact(dialects) {
			add("", d, 0, nil)
		}
	case len(q.Variants) == 0:
		add("", q.Dialect, 0, nil)
	default:
		for _, v := range q.Variants {
			add(v.Variant, q.DialectOf(v.Variant), v.Slots, v.Match)
		}
	}
	for i := range out {
		for _, o := range out[:i] {
			if o.Dialect == out[i].Dialect && slices.Equal(o.Match, out[i].Match) {
				return nil, fmt.Errorf("variants %q and %q have the same series: set match for each", o.variant, out[i].variant)
			}
		}
	}
	return out, nil
}

// known gives the replicas that the controller knows its names. Series may have a
// replica's ID alone, or the ID of its Consul service. What is of none of them keeps its
// own name. matched is how many replicas were found.
func known(engines []observe.Reported, replicas []string) (out []observe.Reported, matched int) {
	names := map[string]string{}
	for _, r := range replicas {
		names[r] = r
		n, err := replica.ParseName(r)
		if err != nil {
			continue
		}
		names[n.ServiceID(replica.RolePrimary)], names[n.ServiceID(replica.RoleShadow)] = r, r
		if other, taken := names[n.ID]; taken && other != r {
			names[n.ID] = "" // of two replicas: it says nothing
		} else {
			names[n.ID] = r
		}
	}
	best := map[string]int{}
	for _, e := range engines {
		if name := names[e.View.Replica]; name != "" {
			e.View.Replica = name
			if n, err := replica.ParseName(name); err == nil {
				e.Variant = n.Variant
			}
			// A pair is one replica: the engine that is scraped speaks for it.
			if i, twice := best[name]; twice {
				if fresher(e.View, out[i].View) {
					out[i] = e
				}
				continue
			}
			best[name] = len(out)
		}
		out = append(out, e)
	}
	return out, len(best)
}

// fresher tells whether a should be believed rather than b.
func fresher(a, b enginemetrics.View) bool {
	rank := func(v enginemetrics.View) int {
		return slices.Index([]enginemetrics.Class{enginemetrics.ClassOK, enginemetrics.ClassDuplicate, enginemetrics.ClassUnknown, enginemetrics.ClassAsleep, enginemetrics.ClassStale, enginemetrics.ClassGone}, v.Class)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.KVUsage.Or(0), a.KVUsage.Or(0)), cmp.Compare(b.Waiting.Or(0), a.Waiting.Or(0))) < 0
}

func (s *Source) replicaLabels() []string {
	if len(s.cfg.ReplicaLabels) > 0 {
		return s.cfg.ReplicaLabels
	}
	return []string{"replica", "pod", "pod_name", "instance"}
}
