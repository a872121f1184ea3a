package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/plugins/strategy"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/autoscaler-plugin/observe"
)

var _ strategy.Strategy = (*Strategy)(nil)

// Keys of the plugin block alone.
const (
	StrategyDecisions = "decisions"      // a file that every decision is written to
	StrategyStateDir  = "state_dir"      // the directory of the state; without it the state is in memory
	StrategyListen    = "metrics_listen" // address of a Prometheus endpoint, as "127.0.0.1:9836"
)

// observeTimeout bounds one look at a model: nomad-autoscaler evaluates every ten seconds.
const observeTimeout = 8 * time.Second

// StrategyConfig is what a Strategy needs.
type StrategyConfig struct {
	// Name is what nomad-autoscaler starts: the plugin block's driver.
	Name string
	// Strategy is one of StrategyNames.
	Strategy string
	Logger   hclog.Logger
	// Open makes a View. Nil: the real one.
	Open func(Sources, hclog.Logger) (View, error)
	// Now is the clock. Nil: the real one.
	Now func() time.Time
}

// Strategy is a strategy. Its methods may be called from several goroutines at once.
type Strategy struct {
	cfg     StrategyConfig
	metrics *Metrics
	served  *endpoint

	// configuring is held while the configuration changes.
	configuring sync.Mutex
	config      map[string]string
	// mu guards what is below; it is held for no call.
	mu    sync.Mutex
	world *world
	slots map[string]*slot
	swept time.Time
}

// world is what one configuration made.
type world struct {
	defaults  map[string]string
	view      View
	decisions *Decisions
	dir       *StateDir // nil without state_dir
}

// NewStrategy makes a strategy that does nothing before SetConfig.
func NewStrategy(cfg StrategyConfig) (*Strategy, error) {
	known := false
	for _, n := range StrategyNames() {
		known = known || n == cfg.Strategy
	}
	if !known {
		return nil, fmt.Errorf("unknown strategy %q: must be one of %v", cfg.Strategy, StrategyNames())
	}
	if cfg.Open == nil {
		cfg.Open = OpenSources
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	registry := prometheus.NewRegistry()
	return &Strategy{cfg: cfg, metrics: NewMetrics(registry, cfg.Strategy), served: newEndpoint(registry, cfg.Logger), slots: map[string]*slot{}}, nil
}

// PluginInfo tells nomad-autoscaler what this is.
func (p *Strategy) PluginInfo() (*base.PluginInfo, error) {
	return &base.PluginInfo{Name: p.cfg.Name, PluginType: sdk.PluginTypeStrategy}, nil
}

// SetConfig reads the plugin block's config: where to look, and defaults for checks. It may
// be called again; what goes on meanwhile ends with the old one. nomad-autoscaler calls it at each
// reload: a config that has not changed is left alone, with the state and the scraper that it has.
func (p *Strategy) SetConfig(config map[string]string) error {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	if p.config != nil && maps.Equal(config, p.config) {
		p.served.listen(strings.TrimSpace(config[StrategyListen])) // its address may have become free
		return nil
	}
	defaults := maps.Clone(config)
	if defaults == nil {
		defaults = map[string]string{}
	}
	r := ReadSettings(defaults)
	decisions, stateDir, listen := r.Text(StrategyDecisions, ""), r.Text(StrategyStateDir, ""), r.Text(StrategyListen, "")
	from := ReadSources(r)
	ofBlock := slices.Collect(maps.Keys(r.asked))
	r.Default("model", "model") // defaults are checked as if a check had named one
	readOptions(r, p.cfg.Strategy)
	if err := r.Err(); err != nil {
		return fmt.Errorf("%s config: %w", p.cfg.Strategy, err)
	}
	for _, k := range ofBlock {
		delete(defaults, k) // they are not for checks
	}
	w := &world{defaults: defaults}
	var err error
	if stateDir != "" {
		w.dir, err = OpenStateDir(stateDir)
	}
	if err == nil && decisions != "" {
		w.decisions, err = OpenDecisions(decisions, MaxDecisions)
	}
	if err == nil {
		w.view, err = p.cfg.Open(from, p.cfg.Logger)
	}
	if err != nil {
		w.close(p.cfg.Logger)
		return fmt.Errorf("%s config: %w", p.cfg.Strategy, err)
	}
	if stateDir == "" {
		p.cfg.Logger.Warn("the strategy's state is in memory only: after each start nothing shrinks until one full window was observed: set state_dir", "strategy", p.cfg.Strategy)
	}
	if decisions == "" {
		p.cfg.Logger.Warn("decisions are not recorded and cannot be replayed: set decisions to a file", "strategy", p.cfg.Strategy)
	}
	p.served.listen(listen)
	p.config = maps.Clone(config)
	p.mu.Lock()
	old := p.world
	p.world, p.slots = w, map[string]*slot{}
	p.mu.Unlock()
	old.close(p.cfg.Logger)
	return nil
}

// Close ends what goes on in the background.
func (p *Strategy) Close() {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	p.served.listen("")
	p.config = nil
	p.mu.Lock()
	old := p.world
	p.world = nil
	p.mu.Unlock()
	old.close(p.cfg.Logger)
}

func (w *world) close(log hclog.Logger) {
	if w == nil {
		return
	}
	if w.view.Close != nil {
		w.view.Close()
	}
	if w.decisions == nil {
		return
	}
	if err := w.decisions.Close(); err != nil {
		log.Warn("cannot close the decisions file", "error", err)
	}
}

// Run decides about one model. An error is one of the configuration; what else goes wrong
// is an answer of no action, with its reason.
func (p *Strategy) Run(eval *sdk.ScalingCheckEvaluation, count int64) (*sdk.ScalingCheckEvaluation, error) {
	start := time.Now()
	defer p.metrics.since("run", start)
	if eval == nil {
		eval = &sdk.ScalingCheckEvaluation{}
	}
	if eval.Action == nil {
		eval.Action = &sdk.ScalingAction{}
	}
	eval.Action.Canonicalize()
	p.mu.Lock()
	w := p.world
	p.mu.Unlock()
	if w == nil {
		return eval, fmt.Errorf("%s: not configured: call SetConfig first", p.cfg.Strategy)
	}
	var config map[string]string
	name := ""
	if eval.Check != nil {
		name = eval.Check.Name
		if eval.Check.Strategy != nil {
			config = eval.Check.Strategy.Config
		}
	}
	r := ReadSettings(w.defaults, config)
	options, look := readOptions(r, p.cfg.Strategy)
	if err := r.Err(); err != nil {
		return eval, fmt.Errorf("%s: %w", p.cfg.Strategy, err)
	}
	look.Group.Count = int(min(max(count, 0), 1_000_000))
	answer, snapshot := p.decide(w, name, options, look)
	fill(eval.Action, &answer, &snapshot, options.Model, count)
	return eval, nil
}

// fill makes an action of an answer.
func fill(a *sdk.ScalingAction, answer *Answer, s *observe.Snapshot, model string, count int64) {
	a.Reason, a.Count, a.Direction = answer.Reason, count, sdk.ScaleDirectionNone
	a.Meta[ActionModel] = model
	if answer.Inert != "" {
		a.Meta["remuda.inert"] = answer.Inert
	}
	if answer.Direction == None {
		return
	}
	a.Count, a.Direction = int64(answer.Count), sdk.ScaleDirectionUp
	if answer.Direction == Down {
		a.Direction = sdk.ScaleDirectionDown
	}
	if s.Controlled {
		named := maps.Clone(answer.Targets)
		for _, v := range s.Variants {
			// A number for it would have the controller refuse all of them. The target gives what
			// is missing to the sum to the variants that there are.
			if v.Removed {
				delete(named, v.Variant)
			}
		}
		targets, err := json.Marshal(named)
		if err != nil { // a map of numbers has none
			a.Direction, a.Reason = sdk.ScaleDirectionNone, err.Error()
			return
		}
		a.Meta[ActionTargets] = string(targets)
		a.Meta[ActionIndex] = strconv.FormatUint(s.ModifyIndex, 10)
	}
}

// decide looks, decides and keeps what is to be kept.
func (p *Strategy) decide(w *world, check string, options Options, look observe.Target) (Answer, observe.Snapshot) {
	s := p.slot(check, options, look)
	s.mu.Lock()
	defer s.mu.Unlock()
	log := p.cfg.Logger.With("strategy", p.cfg.Strategy, "model", options.Model)

	looking := time.Now()
	seeing, done := context.WithTimeout(context.Background(), observeTimeout)
	snapshot, err := w.view.Observer.Observe(seeing, look)
	done()
	p.metrics.since("observe", looking)
	if err != nil {
		p.metrics.observe.WithLabelValues(options.Model).Inc()
		a := Answer{Direction: None, Reason: err.Error(), Inert: "cannot observe the model: " + err.Error()}
		p.tell(log, s, &a)
		return a, snapshot
	}
	if err := s.load(w.dir); err != nil {
		p.metrics.state.WithLabelValues(options.Model, "load").Inc()
		log.Warn("cannot load the strategy's state: starting without it, and replacing it", "error", err)
	}
	call := Call{Strategy: p.cfg.Strategy, Options: options, Now: p.cfg.Now().UnixNano(), Snapshot: snapshot, State: s.memory.State}
	if u := options.Utilization; u != nil {
		s.memory.usage(&call, u.Window)
	}
	record := Record{Time: p.cfg.Now().UTC(), Call: call}
	record.Answer, s.memory.State = call.Decide()
	a := record.Answer
	if err := s.keep(w.dir, p.cfg.Now(), a.Direction != None); err != nil {
		p.metrics.state.WithLabelValues(options.Model, "save").Inc()
		log.Warn("cannot save the strategy's state", "error", err)
	}
	if w.decisions != nil {
		err := s.chain.shorten(&record, &s.memory.State, w.decisions.Turn())
		if err == nil {
			err = w.decisions.Write(&record)
		}
		if err != nil {
			s.chain = chain{}
			p.metrics.lost.Inc()
			log.Error("cannot write a decision to the decisions file", "error", err)
		}
	}
	p.tell(log, s, &a)
	return a, snapshot
}

// alarmEvery is how often it is told that a policy is still inert.
const alarmEvery = 10 * time.Minute

// tell logs a decision with its reason and counts it.
func (p *Strategy) tell(log hclog.Logger, s *slot, a *Answer) {
	p.metrics.decided(s.model, a)
	level := hclog.Debug
	if a.Direction != None {
		level = hclog.Info
	}
	log.Log(level, "decided", "direction", a.Direction, "current", a.Current, "count", a.Count, "targets", fmt.Sprint(a.Targets), "reason", a.Reason)
	if c := a.Capacity; c != nil {
		log.Debug("capacity analysis completed", "total_replicas", c.TotalReplicas, "non_saturated", c.NonSaturated, "unknown", c.UnknownReplicas,
			"avg_spare_kv", c.AvgSpareKV.String(), "avg_spare_queue", c.AvgSpareQueue.String(), "scale_up", c.ScaleUp, "scale_up_reason", c.ScaleUpReason,
			"scale_down_safe", c.ScaleDownSafe, "scale_down_hold", c.ScaleDownHold,
			"remaining_spare_kv", c.RemainingSpareKV.String(), "remaining_spare_queue", c.RemainingSpareQueue.String())
		for _, name := range slices.Sorted(maps.Keys(c.Decisions)) {
			v := c.Decisions[name]
			log.Debug("capacity target", "variant", v.Variant, "action", v.Action, "current", v.Current, "ready", v.Ready, "target", v.Target,
				"cost", v.Cost, "accelerator", v.Accelerator, "reason", v.Reason)
		}
	}
	now := p.cfg.Now()
	switch {
	case a.Inert != "" && (s.alarmed.IsZero() || now.Sub(s.alarmed) >= alarmEvery || now.Before(s.alarmed)):
		s.alarmed = now
		log.Error("ALARM: the policy is inert: it cannot make a decision", "reason", a.Inert)
	case a.Inert == "" && !s.alarmed.IsZero():
		s.alarmed = time.Time{}
		log.Info("the policy can make decisions again")
	}
}

// Slots that nobody asked for are forgotten.
const (
	forgetAfter = time.Hour
	sweepEvery  = time.Minute
)

// slot returns what there is of a policy's model. Each check of a policy has windows and budgets
// of its own.
func (p *Strategy) slot(check string, o Options, look observe.Target) *slot {
	key := p.cfg.Strategy + "/" + o.Model
	// No model's name has two of the separators in a row, so that a key is of one model alone.
	if v := look.Group.Variant; v != observe.DefaultVariant {
		key += "::" + v
	}
	if check != "" {
		key += "##" + check
	}
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := now.Sub(p.swept); since >= sweepEvery || since < 0 {
		p.swept = now
		for k, s := range p.slots {
			if now.Sub(s.used) > forgetAfter {
				delete(p.slots, k)
				p.metrics.forget(s.model)
			}
		}
	}
	s := p.slots[key]
	if s == nil {
		s = &slot{key: key, model: o.Model}
		p.slots[key] = s
	}
	s.used = now
	return s
}
