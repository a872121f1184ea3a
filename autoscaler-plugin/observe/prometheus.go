package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/internal/replica"
)

// PrometheusConfig says which server to ask, and how.
type PrometheusConfig struct {
	// Address is the URL of a Prometheus server that has the engines' metrics, in place of Consul; also
	// with a path before /api/v1/query.
	Address string
	// Token is a bearer token for the Prometheus server.
	Token string
	// User and Password are for basic authentication, in place of the token.
	User, Password string
	// Headers are sent with each query, as "X-Scope-OrgID=tenant".
	Headers map[string]string
	// CACert is a PEM file of the authority that signed the server's certificate; empty: the system's.
	CACert string
	// ModelLabel is the label with the model's name, where it is not the engine's own, as "model_id".
	ModelLabel string
	// Match are labels that all series must have, such as namespace.
	Match []enginemetrics.Matcher
	// ReplicaLabels name a replica, the first one that a series has counts; empty:
	// replica, pod, pod_name, instance. Where the controller has the model the value must be
	// the replica's name, its ID, or its Consul service ID.
	ReplicaLabels []string
	// Series are the names of series where they are not the engine's own, by what they
	// measure: running, waiting or kv_usage.
	Series map[string]string
	// Window is over how long the peaks are taken; 0: one minute.
	Window time.Duration
	// StaleAfter is how old a replica's last scrape may be; 0: 30 seconds. Raise it where the server
	// scrapes less often than every 10.
	StaleAfter time.Duration
	// Timeout bounds the queries of one model; 0 is 5 seconds.
	Timeout time.Duration
}

func (c *PrometheusConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, checkAddress(c.Address))
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
	errs = append(errs, enginemetrics.VLLM().Rename(c.Series))
	if c.Timeout < 0 || c.Window < 0 || c.StaleAfter < 0 {
		bad("timeout is %s, window is %s and stale after is %s: each must be 0 (the default) or more", c.Timeout, c.Window, c.StaleAfter)
	}
	return errors.Join(errs...)
}

// Prometheus is a Reporter that asks a Prometheus server.
//
// It asks the two queries of the capacity analyzer's description (the peaks of KV usage and of
// the queue over one minute), those of the running requests, and when each replica was last
// scraped. It guarantees:
//
//   - All queries of a model are answered or the model is unknown: no half of an answer is
//     used.
//   - A replica that is dead and still in the server's memory is stale or gone, by the
//     server's own clock.
//   - Series of another model are a finding that raises an alarm, and never an idle model.
//   - Time and size of an answer are bounded. Nothing is written to the server.
//
// Its methods may be called from several goroutines at once.
type Prometheus struct {
	cfg    PrometheusConfig
	client *promClient
}

var _ Reporter = (*Prometheus)(nil)

// NewPrometheus checks cfg; nothing is asked yet.
func NewPrometheus(cfg PrometheusConfig) (*Prometheus, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	cfg.Timeout, cfg.StaleAfter = cmp.Or(cfg.Timeout, 5*time.Second), cmp.Or(cfg.StaleAfter, enginemetrics.DefaultStaleAfter)
	if len(cfg.ReplicaLabels) == 0 {
		cfg.ReplicaLabels = []string{"replica", "pod", "pod_name", "instance"}
	}
	client, err := newPromClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	return &Prometheus{cfg: cfg, client: client}, nil
}

// Name implements Reporter.
func (*Prometheus) Name() string { return "prometheus" }

// Close drops idle connections.
func (s *Prometheus) Close() { s.client.close() }

// Report answers what the server knows of a model's engines. Engines whose dialect is not
// told are taken for vLLM's: a query needs names.
func (s *Prometheus) Report(ctx context.Context, q Question) (Report, error) {
	var out Report
	var group JobGroup
	if q.Group != nil {
		group = *q.Group
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for _, dialect := range q.dialects() {
		r, err := s.fetch(ctx, q.Shown, dialect, group.Match)
		if err != nil {
			return Report{}, fmt.Errorf("query Prometheus for model %q: %w", q.Model, err)
		}
		if r.Nameless > 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("%d series have no label that names a replica and are ignored: must have one of %s",
				r.Nameless, strings.Join(s.cfg.ReplicaLabels, ", ")))
		}
		for _, w := range r.Warnings {
			out.Notes = append(out.Notes, "Prometheus warning: "+w)
		}
		out.Findings = append(out.Findings, r.Findings...)
		for _, v := range r.Views {
			out.Engines = append(out.Engines, Reported{View: v, Variant: cmp.Or(group.Variant, DefaultVariant), Slots: group.Slots,
				// Dead, or not scraped any more: without a list of those that live, the number of
				// replicas tells which.
				Gone: q.Replicas == nil && v.Class == enginemetrics.ClassStale})
		}
	}
	if q.Replicas == nil {
		return out, nil
	}
	var matched int
	out.Engines, matched = knownReplicas(out.Engines, q.Replicas)
	if matched == 0 && len(out.Engines) > 0 && len(q.Replicas) > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("Prometheus reports %d replicas, such as %q, and the controller has none of them: the label must be the replica's name, such as %q, or its ID",
			len(out.Engines), out.Engines[0].View.Replica, q.Replicas[0]))
	}
	return out, nil
}

// dialects are those of the engines: one for each that the controller says its variants speak. Those
// that show no metrics are left out.
func (q *Question) dialects() []string {
	names := values(q.Dialects)
	if len(names) == 0 {
		names = []string{cmp.Or(q.Dialect, "vllm")}
	}
	return slices.DeleteFunc(slices.Compact(names), silent)
}

// knownReplicas gives the replicas that the controller knows its names. Series may have a
// replica's ID alone, or the ID of its Consul service. What is of none of them keeps its
// own name. matched is how many replicas were found.
func knownReplicas(engines []Reported, replicas []string) (out []Reported, matched int) {
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

// fetch asks all queries about the engines of one dialect, at once.
func (s *Prometheus) fetch(ctx context.Context, shown, speaks string, match []enginemetrics.Matcher) (enginemetrics.Reports, error) {
	dialect, err := enginemetrics.Lookup(speaks)
	if err != nil {
		return enginemetrics.Reports{}, err
	}
	if err := dialect.Rename(s.cfg.Series); err != nil {
		return enginemetrics.Reports{}, err
	}
	match = append(slices.Clone(s.cfg.Match), match...)
	slices.SortFunc(match, func(a, b enginemetrics.Matcher) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	})
	queries, err := dialect.Queries(enginemetrics.Selector{Model: shown, ModelLabel: s.cfg.ModelLabel, Match: slices.Compact(match), Window: s.cfg.Window})
	if err != nil {
		return enginemetrics.Reports{}, err
	}
	var answers enginemetrics.Answers
	var running errgroup.Group
	for _, one := range [...]struct {
		text string
		into **enginemetrics.Vector
	}{{queries.KVUsage, &answers.KVUsage}, {queries.Waiting, &answers.Waiting}, {queries.Running, &answers.Running}, {queries.Seen, &answers.Seen}} {
		if one.text != "" {
			running.Go(func() (err error) {
				*one.into, err = s.client.query(ctx, one.text)
				return err
			})
		}
	}
	if err := running.Wait(); err != nil { // one will do: they fail alike
		return enginemetrics.Reports{}, err
	}
	if queries.Models != "" && empty(answers) {
		if answers.Models, err = s.client.query(ctx, queries.Models); err != nil {
			return enginemetrics.Reports{}, err
		}
	}
	return enginemetrics.ReadAnswers(answers, enginemetrics.ReportOptions{Dialect: dialect, Model: shown, ModelLabel: s.cfg.ModelLabel,
		ReplicaLabels: s.cfg.ReplicaLabels, StaleAfter: s.cfg.StaleAfter}), nil
}

// empty tells that no series came.
func empty(a enginemetrics.Answers) bool {
	for _, v := range []*enginemetrics.Vector{a.KVUsage, a.Waiting, a.Running, a.Seen} {
		if v != nil && len(v.Series) > 0 {
			return false
		}
	}
	return true
}
