package utilization

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Decide answers how many instances the model should have. The order is: switches and
// graces, which hold; the rules, of which the last that is on decides (request count,
// EZ, old utilization); then the limits, in the order
// bounds, batch, management.
//
// A wrong configuration holds the present count and says what is wrong. The bounds
// are enforced even where a rule holds, one batch at a time downwards; a switch or a
// grace holds also outside the bounds.
func Decide(c Config, in Input) Decision {
	d := Decision{Model: in.Model, Action: NoChange, Current: in.Requested, Target: max(in.Requested, 0)}
	if d.Code, d.Reason = held(c, in); d.Code != "" {
		return d
	}
	d.Proposals = proposals(c, in)
	chosen := d.Proposals[len(d.Proposals)-1]
	d.Rule, d.Code, d.Reason, d.Target = chosen.Rule, chosen.Code, chosen.Reason, chosen.Target
	d.limit(c, in)
	switch {
	case d.Target > d.Current:
		d.Action = ScaleUp
	case d.Target < d.Current:
		d.Action = ScaleDown
	}
	return d
}

// held returns why nothing is to be decided, or nothing.
func held(c Config, in Input) (Code, string) {
	if err := c.Validate(); err != nil {
		return InvalidConfig, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	off, why := c.SwitchedOff()
	switch {
	case in.Requested < 0 || in.Requested > maxCount:
		return InvalidInput, fmt.Sprintf("requested is %d: must be 0 or more", in.Requested)
	case in.Healthy != nil && *in.Healthy < 0:
		return InvalidInput, fmt.Sprintf("healthy is %d: must be 0 or more", *in.Healthy)
	case in.Starting < 0:
		return InvalidInput, fmt.Sprintf("starting is %d: must be 0 or more", in.Starting)
	case off != "":
		return off, why
	case len(c.Tiers) > 0 && in.Tier == "":
		return TierUnknown, fmt.Sprintf("tiers is set (%s) and the model's tier is unknown: the model is not scaled; set tier, or leave tiers empty", strings.Join(c.Tiers, ", "))
	case len(c.Tiers) > 0 && !slices.Contains(c.Tiers, in.Tier):
		return TierNotSelected, fmt.Sprintf("tier %q is not one of this scaler's tiers (%s)", in.Tier, strings.Join(c.Tiers, ", "))
	}
	if left := graceLeft(c, in); left > 0 {
		return TierGrace, fmt.Sprintf("the tier changed to %q: the model is not scaled for another %s", in.Tier, left)
	}
	return "", ""
}

// SwitchedOff says why this configuration never scales the model, whatever is measured;
// both are empty where it does. Whoever scales beside Decide, as to zero, has to ask too.
func (c Config) SwitchedOff() (Code, string) {
	switch {
	case c.DisableScaling:
		return DisabledGlobally, "disable_scaling is set: models are not scaled"
	case c.Scaling.Disabled:
		return DisabledForModel, "scaling_config.disabled is set: the model is not scaled"
	case c.Management == Disabled:
		return ManagementDisabled, "management is disabled: the model is not scaled"
	case c.Management == Manual:
		return ManagementManual, "management is manual: the model is not scaled automatically"
	}
	return "", ""
}

// graceLeft is how long the model is still left alone after its tier changed. A
// change that lies in the future (the clock was put back) holds only while it is
// nearer than one grace, so that a wrong time cannot hold a model for ever.
func graceLeft(c Config, in Input) time.Duration {
	if in.TierChanged.IsZero() {
		return 0
	}
	seconds, ok := c.TierGraceByTier[in.Tier]
	if !ok {
		seconds = c.TierGraceSeconds
	}
	grace := time.Duration(min(int64(seconds), math.MaxInt64/int64(time.Second))) * time.Second
	if age := in.Now.Sub(in.TierChanged); age > -grace && age < grace {
		return grace - max(age, 0)
	}
	return 0
}

// limit applies the bounds, the batch and the management mode to d.Target.
func (d *Decision) limit(c Config, in Input) {
	by := func(l Limit, target int, format string, args ...any) {
		d.Limits = append(d.Limits, l)
		d.Target = target
		d.Reason += "; " + fmt.Sprintf(format, args...)
	}
	if d.Target < c.MinCount {
		by(ByMin, c.MinCount, "raised to min_count %d", c.MinCount)
	}
	if d.Target > c.MaxCount {
		by(ByMax, c.MaxCount, "capped at max_count %d", c.MaxCount)
	}
	// Written as a subtraction of two counts that are not negative, so that no batch
	// size can overflow.
	if left := max(c.DownscaleBatch-max(in.RemovedInCycle, 0), 0); d.Current-d.Target > left {
		by(ByBatch, d.Current-left, "at most %d are removed in a cycle", c.DownscaleBatch)
	}
	if c.Management == Upscaling && d.Target < d.Current {
		by(ByManagement, d.Current, "management only allows upscaling")
	}
}
