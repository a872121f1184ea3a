package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/apm"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	"remuda/autoscaler-plugin/observe"
)

var _ apm.APM = (*APM)(nil)

// queryTimeout bounds one query.
const queryTimeout = 8 * time.Second

// APMConfig is what an APM needs.
type APMConfig struct {
	// Name is what nomad-autoscaler starts: the plugin block's driver.
	Name   string
	Logger hclog.Logger
	// Open makes a View. Nil: the real one.
	Open func(Sources, hclog.Logger) (View, error)
}

// APM is the APM "remuda" of nomad-autoscaler: single numbers of a model, for any strategy, also
// nomad-autoscaler's own.
//
// A query is METRIC/MODEL or METRIC/MODEL//VARIANT; a model's name may hold slashes.
//
// It guarantees that a query is answered with one finite number of now, or with an error that
// says why there is none: what is not known never looks like 0. (Without any point
// nomad-autoscaler stops evaluating the policy.)
//
// Its methods may be called from several goroutines at once.
type APM struct {
	cfg APMConfig
	// configuring is held while the configuration changes.
	configuring sync.Mutex
	config      map[string]string
	// mu guards view; it is held for no query.
	mu      sync.Mutex
	view    View
	dialect string
}

// NewAPM makes an APM that answers nothing before SetConfig.
func NewAPM(cfg APMConfig) *APM {
	if cfg.Open == nil {
		cfg.Open = OpenSources
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &APM{cfg: cfg}
}

// PluginInfo tells nomad-autoscaler what this is.
func (p *APM) PluginInfo() (*base.PluginInfo, error) {
	return &base.PluginInfo{Name: p.cfg.Name, PluginType: sdk.PluginTypeAPM}, nil
}

// SetConfig reads the plugin block's config: where to look. It may be called again; a config that
// has not changed is left alone.
func (p *APM) SetConfig(config map[string]string) error {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	if p.config != nil && maps.Equal(config, p.config) {
		return nil
	}
	r := ReadSettings(config)
	from := ReadSources(r)
	dialect := r.Text("dialect", "")
	if err := r.Err(); err != nil {
		return fmt.Errorf("apm config: %w", err)
	}
	view, err := p.cfg.Open(from, p.cfg.Logger)
	if err != nil {
		return fmt.Errorf("apm config: %w", err)
	}
	p.swap(view, dialect)
	p.config = maps.Clone(config)
	return nil
}

// Close ends what goes on in the background.
func (p *APM) Close() {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	p.config = nil
	p.swap(View{}, "")
}

func (p *APM) swap(view View, dialect string) {
	p.mu.Lock()
	old := p.view
	p.view, p.dialect = view, dialect
	p.mu.Unlock()
	if old.Close != nil {
		old.Close()
	}
}

// Query answers with the number of now, at the end of the time range.
func (p *APM) Query(query string, when sdk.TimeRange) (sdk.TimestampedMetrics, error) {
	q, err := ParseQuery(query)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	view, dialect := p.view, p.dialect
	p.mu.Unlock()
	if view.Observer == nil {
		return nil, errors.New("apm: not configured: call SetConfig first")
	}
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	s, err := view.Observer.Observe(ctx, observe.Target{Model: q.Model, Dialect: dialect})
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	v, err := q.of(&s)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = fmt.Errorf("the value is %v: must be finite", v)
	}
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	at := when.To
	if at.IsZero() {
		at = s.At
	}
	return sdk.TimestampedMetrics{{Timestamp: at, Value: v}}, nil
}

// QueryMultiple is for nomad-autoscaler's vertical scaling; it answers one series.
func (p *APM) QueryMultiple(query string, when sdk.TimeRange) ([]sdk.TimestampedMetrics, error) {
	one, err := p.Query(query, when)
	if err != nil {
		return nil, err
	}
	return []sdk.TimestampedMetrics{one}, nil
}

// Query is what is asked for.
type Query struct {
	Metric string
	Model  string
	// Variant is empty for all of them.
	Variant string
}

// ParseQuery reads METRIC/MODEL or METRIC/MODEL//VARIANT.
func ParseQuery(text string) (Query, error) {
	metric, rest, ok := strings.Cut(strings.TrimSpace(text), "/")
	q := Query{Metric: metric, Model: rest}
	if at := strings.LastIndex(rest, "//"); at >= 0 {
		q.Model, q.Variant = rest[:at], rest[at+2:]
		if q.Variant == "" {
			ok = false
		}
	}
	if !ok || q.Model == "" {
		return Query{}, fmt.Errorf("query %q: must be METRIC/MODEL or METRIC/MODEL//VARIANT, such as \"queue/llama-3-8b\"", text)
	}
	if _, known := numbers[metric]; !known {
		return Query{}, fmt.Errorf("query %q: the metric is %q: must be one of %s", text, metric, strings.Join(QueryMetrics(), ", "))
	}
	return q, nil
}

// QueryMetrics are those that there are, sorted.
func QueryMetrics() []string { return slices.Sorted(maps.Keys(numbers)) }
