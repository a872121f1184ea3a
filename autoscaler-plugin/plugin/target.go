package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/plugins/shared"
	"github.com/hashicorp/nomad-autoscaler/plugins/target"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	"remuda/autoscaler-plugin/allocate"
	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
)

// Controller is what the target asks the controller for.
type Controller interface {
	Model(context.Context, string, api.QueryOptions) (api.ModelStatus, api.QueryMeta, error)
	Scale(context.Context, string, api.ScaleRequest) (api.ScaleResponse, error)
	Policies(context.Context, api.QueryOptions) ([]api.Policy, api.QueryMeta, error)
}

var (
	_ Controller    = (*api.Client)(nil)
	_ target.Target = (*Target)(nil)
)

// How long one call may take.
const (
	statusTimeout = 5 * time.Second
	scaleTimeout  = 30 * time.Second
)

// statusWithin is how long Status may take. nomad-autoscaler gives up after three quarters
// of the evaluation interval and says so in the config; an answer must come before that, as
// giving up is an error, which keeps a policy from ever starting.
func statusWithin(config map[string]string) time.Duration {
	if d, err := time.ParseDuration(config[shared.PluginConfigKeyGRPCTimeout]); err == nil && d > 0 {
		return min(statusTimeout, d*3/4)
	}
	return statusTimeout
}

// TargetConfig is what a Target needs.
type TargetConfig struct {
	// Name is what nomad-autoscaler starts: the plugin block's driver.
	Name   string
	Logger hclog.Logger
	// Connect makes a client. Nil: the real one.
	Connect func(api.Config) (Controller, error)
	// Reload has nomad-autoscaler read its policies again. Nil: SIGHUP to the parent process.
	Reload func() error
	// Now is the clock. Nil: the real one.
	Now func() time.Time
}

// Target is the scaling target "remuda" of nomad-autoscaler: one policy scales one model, and a
// decision about its variants goes to the controller as one call.
//
// It guarantees:
//
//   - A decision is carried out whole or not at all, and never twice: it has absolute
//     numbers, goes as one call, and is compared with the model's index that the strategy
//     saw. Where the model has changed since, nothing happens, the policy does not cool down,
//     and the next evaluation looks again.
//   - While the controller cannot be asked, the target is not ready: nothing is evaluated,
//     no policy is dropped (a handler of nomad-autoscaler that starts with an error is not
//     started again), and all goes on by itself afterwards.
//   - A policy of a model file acts only while the file has it, and no other one acts on a model
//     whose file has one.
//   - Replicas that start count, and those that drain or rest do not, so that no load is
//     answered twice and no room is counted that goes away.
//
// Its methods may be called from several goroutines at once.
type Target struct {
	cfg TargetConfig

	// configuring is held by SetConfig and Close.
	configuring sync.Mutex
	config      map[string]string

	// mu guards what is below; it is held for no call.
	mu         sync.Mutex
	controller Controller
	policies   *policyWatch
	// away has, by model, why its status could not be told, so that it is logged once.
	away map[string]string
	// seen has, by model, its index at the last Status, for strategies that know none.
	seen map[string]uint64
}

// NewTarget makes a target that does nothing before SetConfig.
func NewTarget(cfg TargetConfig) *Target {
	if cfg.Connect == nil {
		cfg.Connect = func(c api.Config) (Controller, error) { return api.NewClient(c) }
	}
	if cfg.Reload == nil {
		cfg.Reload = reloadParent()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Target{cfg: cfg, away: map[string]string{}, seen: map[string]uint64{}}
}

// PluginInfo tells nomad-autoscaler what this is.
func (p *Target) PluginInfo() (*base.PluginInfo, error) {
	return &base.PluginInfo{Name: p.cfg.Name, PluginType: sdk.PluginTypeTarget}, nil
}

// SetConfig reads the plugin block's config: where the controller is, and where policies of model
// files go. nomad-autoscaler calls it again at each reload; a config that has not changed is left alone.
func (p *Target) SetConfig(config map[string]string) error {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	if p.config != nil && maps.Equal(config, p.config) {
		return nil
	}
	r := ReadSettings(config)
	dir := r.Text(TargetPolicyDir, "")
	to := r.Controller()
	if to == nil {
		r.Fault("controller", "is %q: must be a controller, because the target scales through it", none)
	}
	if err := r.Err(); err != nil {
		return fmt.Errorf("target config: %w", err)
	}
	c, err := p.cfg.Connect(*to)
	if err != nil {
		return fmt.Errorf("target config: %w", err)
	}
	p.watch(nil)
	if dir != "" {
		w, err := watchPolicies(c, dir, p.cfg.Reload, p.cfg.Logger)
		if err != nil {
			return fmt.Errorf("target config: %w", err)
		}
		p.watch(w)
	}
	p.config = maps.Clone(config)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.controller = c
	return nil
}

// watch replaces the watch for policies.
func (p *Target) watch(w *policyWatch) {
	p.mu.Lock()
	old := p.policies
	p.policies = w
	p.mu.Unlock()
	old.close()
}

// Close ends what goes on in the background.
func (p *Target) Close() {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	p.watch(nil)
}

// check reads a policy's target block and returns its model.
func (p *Target) check(config map[string]string) (Controller, string, error) {
	r := ReadSettings(config)
	model := r.Text("model", "")
	r.Text(policyKey, "")
	if model == "" {
		r.Fault("model", "is missing: must be the model's name, as in its model file")
	}
	if err := r.Err(); err != nil {
		return nil, "", fmt.Errorf("target: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.controller == nil {
		return nil, "", errors.New("target: not configured: call SetConfig first")
	}
	return p.controller, model, nil
}

// Keys of a TargetStatus' Meta, beside nomad-autoscaler's own.
const (
	MetaModelIndex = "remuda.model_index" // the model's index, with which a decision is compared
	MetaStarting   = "remuda.starting"    // replicas that start
	MetaPending    = "remuda.pending"     // replicas that should run and have no place yet
	MetaDraining   = "remuda.draining"    // replicas that finish their requests and end
	MetaWarm       = "remuda.warm"        // replicas that sleep
	MetaWhy        = "remuda.why"         // why it is not ready
)

// Status tells how many replicas the model has and whether it may be scaled now.
func (p *Target) Status(config map[string]string) (*sdk.TargetStatus, error) {
	c, model, err := p.check(config)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.policies.asked()
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), statusWithin(config))
	defer cancel()
	st, _, err := c.Model(ctx, model, api.QueryOptions{})
	if err != nil {
		p.note(model, err.Error())
		// An error here would keep the policy from ever starting.
		return &sdk.TargetStatus{Meta: map[string]string{MetaWhy: err.Error()}}, nil
	}
	// The note is of the policy that counts: a replaced one is on its way out.
	why := otherPolicy(&st.Model, config[policyKey])
	if why == "" {
		why = notReady(&st)
		p.note(model, why)
	} else if config[policyKey] == "" {
		p.note(model, why)
	}
	p.mu.Lock()
	p.seen[model] = st.Model.ModifyIndex
	p.mu.Unlock()
	out := &sdk.TargetStatus{Ready: why == "", Count: int64(Count(&st)), Meta: map[string]string{
		MetaModelIndex: strconv.FormatUint(st.Model.ModifyIndex, 10),
		MetaStarting:   strconv.Itoa(st.Counts.Starting),
		MetaPending:    strconv.Itoa(max(st.Model.Target-there(&st), 0)),
		MetaDraining:   strconv.Itoa(st.Counts.Leaving),
		MetaWarm:       strconv.Itoa(st.Counts.Warm),
	}}
	if why != "" {
		out.Meta[MetaWhy] = why
	}
	if at := st.LastScaledAt; !at.IsZero() {
		// A clock that is ahead elsewhere must not make a cooldown of hours.
		out.Meta[sdk.TargetStatusMetaKeyLastEvent] = strconv.FormatInt(min(at.UnixNano(), p.cfg.Now().UnixNano()), 10)
	}
	return out, nil
}

// there is how many replicas are there or on their way.
func there(st *api.ModelStatus) int { return st.Counts.Hot + st.Counts.Starting + st.Counts.Failed }

// Count is the number that strategies go by: what the model should have, as far as there is
// a place for it. What has a place and no replica yet comes within moments and counts; what
// has no place does not, so that another variant can be chosen.
func Count(st *api.ModelStatus) int { return allocate.Sum(observe.Counted(st)) }

// notReady says why the model is not to be scaled now.
func notReady(st *api.ModelStatus) string {
	switch m := st.Model; {
	case m.Stopped:
		return "the model is stopped: start it with `remuda model start`"
	case m.Management == "disabled" || m.Management == "manual":
		return "the model's management is " + m.Management + ": it is not scaled automatically"
	case st.Limits.ScalingDisabled:
		return "the switch disable-scaling is set: the model is not scaled automatically"
	}
	return ""
}

// note logs why a model is not ready when that changes.
func (p *Target) note(model, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.away[model]; was != why {
		if why == "" {
			delete(p.away, model)
			p.cfg.Logger.Info("the model can be scaled again", "model", model)
			return
		}
		p.away[model] = why
		p.cfg.Logger.Warn("the model cannot be scaled now: its policy is not evaluated", "model", model, "reason", why)
	}
}
