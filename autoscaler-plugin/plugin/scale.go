package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/nomad-autoscaler/sdk"

	"remuda/autoscaler-plugin/allocate"
	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
)

// Keys of a ScalingAction's Meta, by which the strategies of this suite tell the target more
// than a number. All values are texts: nomad-autoscaler sends Meta as JSON.
const (
	ActionModel   = "remuda.model"       // the model that was looked at
	ActionTargets = "remuda.targets"     // JSON: replicas by variant
	ActionIndex   = "remuda.model_index" // the model's index at that moment
)

// Scale carries an action out. What changes nothing, is a dry run or was decided on an older
// state of the model ends in a TargetScalingNoOpError, after which nomad-autoscaler does not
// cool down.
func (p *Target) Scale(action sdk.ScalingAction, config map[string]string) error {
	c, model, err := p.check(config)
	if err != nil {
		return err
	}
	order, err := readOrder(action, model)
	if err != nil {
		return err
	}
	log := p.cfg.Logger.With("model", model, "count", action.Count, "reason", action.Reason)
	if action.Count == sdk.StrategyActionMetaValueDryRunCount || config["dry-run"] == "true" {
		log.Info("dry run: the model is not scaled", "targets", fmt.Sprint(order.targets), "would_be", action.Meta["nomad_autoscaler.dry_run.count"])
		return sdk.NewTargetScalingNoOpError("dry run of model %s", model)
	}
	if action.Count < 0 || action.Count > allocate.Unbounded {
		return fmt.Errorf("scale model %s: the count is %d: must be 0 to %d", model, action.Count, allocate.Unbounded)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scaleTimeout)
	defer cancel()
	if order.targets != nil && allocate.Sum(order.targets) != int(action.Count) {
		// The policy's min or max changed the sum after the strategy had shared it out.
		st, _, err := c.Model(ctx, model, api.QueryOptions{})
		if err != nil {
			return fmt.Errorf("scale model %s: %w", model, err)
		}
		order.targets = allocate.Spread(int(action.Count), Variants(&st), order.targets)
	}
	rq := api.ScaleRequest{Origin: "autoscaler", Reason: clip(action.Reason)}
	switch {
	case order.targets != nil:
		rq.Variants = order.targets
	default:
		rq.Replicas = int(action.Count)
		if order.index == 0 {
			p.mu.Lock()
			order.index = p.seen[model]
			p.mu.Unlock()
		}
	}
	if order.index != 0 {
		rq.CAS = &order.index
	}
	answer, err := c.Scale(ctx, model, rq)
	if err != nil {
		var said *api.Error
		if errors.As(err, &said) && said.Code == api.CodeConflict {
			log.Info("the model has changed since the decision: it is not scaled", "error", err)
			return sdk.NewTargetScalingNoOpError("model %s: %s", model, said.Message)
		}
		return fmt.Errorf("scale model %s: %w", model, err)
	}
	if !answer.Changed {
		return sdk.NewTargetScalingNoOpError("model %s already has %d replicas", model, answer.Target)
	}
	log.Info("scaled", "variants", fmt.Sprint(rq.Variants), "target", answer.Target)
	return nil
}

// Variants are the model's, for sharing a number out.
func Variants(st *api.ModelStatus) []allocate.Variant {
	all := make([]allocate.Variant, 0, len(st.Model.Variants))
	current := observe.Counted(st)
	for _, v := range st.Model.Variants {
		_, none := st.Unplaceable[v.Name]
		all = append(all, allocate.Variant{Name: v.Name, Cost: v.Cost, Slots: v.Slots, Current: current[v.Name], Unplaceable: none})
	}
	return all
}

// order is what a strategy said beside the count.
type order struct {
	targets map[string]int
	index   uint64
}

func readOrder(action sdk.ScalingAction, model string) (order, error) {
	var o order
	text := func(key string) string { s, _ := action.Meta[key].(string); return s }
	if of := text(ActionModel); of != "" && of != model {
		return o, fmt.Errorf("scale model %s: the strategy decided for model %s: the check's model and the target's must be the same", model, of)
	}
	if t := text(ActionTargets); t != "" {
		if err := json.Unmarshal([]byte(t), &o.targets); err != nil {
			return o, fmt.Errorf("scale model %s: %s is not a JSON object of counts: %w", model, ActionTargets, err)
		}
		for v, n := range o.targets {
			if n < 0 || n > allocate.Unbounded {
				return o, fmt.Errorf("scale model %s: the count of variant %s is %d: must be 0 to %d", model, v, n, allocate.Unbounded)
			}
		}
	}
	if i := text(ActionIndex); i != "" {
		var err error
		if o.index, err = strconv.ParseUint(i, 10, 64); err != nil {
			return o, fmt.Errorf("scale model %s: %s is %q: must be an index", model, ActionIndex, i)
		}
	}
	return o, nil
}

// clip makes a reason short enough for the controller, on a rune's border.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= api.MaxScaleReason {
		return s
	}
	const dots = "..."
	s = s[:api.MaxScaleReason-len(dots)]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + dots
}
