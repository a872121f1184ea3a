package utilization

import (
	"errors"
	"fmt"
	"math"
)

// Config is how one model is scaled. The names in JSON are those of Workers AI's
// Config API. Start from DefaultConfig: the zero value is not valid.
type Config struct {
	// DisableScaling is the global kill switch: no model is scaled.
	DisableScaling bool `json:"disable_scaling"`
	// ScalingFactor is the request-count rule's instances per request and minute, and
	// the overprovisioning of the old utilization rule, which takes at least
	// MinUtilizationFactor.
	ScalingFactor float64 `json:"scaling_factor"`
	// ModelUtilization switches the old utilization rule on. It has the last word.
	ModelUtilization bool `json:"model_utilization_autoscaler"`
	// Scaling is the model's own part of the configuration.
	Scaling Scaling `json:"scaling_config"`
	// MinCount and MaxCount bound every answer of every rule, in instances.
	MinCount int `json:"min_count"`
	MaxCount int `json:"max_count"`
	// DownscaleBatch is how many instances one cycle may take away at most.
	DownscaleBatch int `json:"downscale_batch"`
	// MaxConcurrency is how many requests one instance serves at once. Both
	// utilization rules need it; the request-count rule does not.
	MaxConcurrency int `json:"max_concurrent_requests"`
	// Management is who may scale: see Management.
	Management Management `json:"management"`
	// Tiers are the tiers this scaler serves. Empty means all of them.
	Tiers []string `json:"tiers,omitempty"`
	// TierGraceSeconds is how long a model is left alone after its tier changed.
	TierGraceSeconds int `json:"tier_grace_seconds"`
	// TierGraceByTier overrides TierGraceSeconds for the tier a model changed to.
	TierGraceByTier map[string]int `json:"tier_grace_seconds_by_tier,omitempty"`
}

// Scaling is Workers AI's scaling_config.
type Scaling struct {
	// Disabled is the model's own kill switch.
	Disabled bool `json:"disabled"`
	// EZ is the newest rule.
	EZ EZ `json:"utilization_based"`
}

// EZ is the configuration of the rule with bounds of its own.
type EZ struct {
	// Active switches the rule on.
	Active bool `json:"active"`
	// MinUtilization and MaxUtilization bound the band in which nothing is done, as
	// shares of the instances' concurrency. Both ends belong to the band.
	MinUtilization float64 `json:"min_utilization"`
	MaxUtilization float64 `json:"max_utilization"`
	// UtilizationScale multiplies what was measured and what was forecast.
	UtilizationScale float64 `json:"utilization_scale"`
	// UseForecast takes the larger of the present and the same time last week.
	UseForecast bool `json:"use_forecast"`
	// UseOutOfCap adds the requests that were turned away for want of capacity.
	UseOutOfCap bool `json:"use_out_of_cap"`
	// Prometheus takes Input.Utilization in place of the inference seconds.
	Prometheus bool `json:"prometheus"`
}

// Management is who may scale a model (Workers AI's ExternalCapacity).
type Management string

// The management modes.
const (
	Disabled  Management = "disabled"  // nothing is managed
	Manual    Management = "manual"    // people manage it
	Upscaling Management = "upscaling" // the scaler may only add
	Full      Management = "full"      // the scaler may add and remove
)

// Numbers of the rules that are not configuration.
const (
	// MinUtilizationFactor is the least overprovisioning of the old rule.
	MinUtilizationFactor = 1.2
	// UtilizationDeadband is added to the factor for the old rule's lower end.
	UtilizationDeadband = 0.15
	// MinSuccessful is the floor of the successful requests per minute by which the
	// inflation for refused requests divides.
	MinSuccessful = 0.1
	// MaxInflation caps that inflation.
	MaxInflation = 2
	// maxCount keeps counts within what every int can hold.
	maxCount = math.MaxInt32
)

// DefaultConfig returns Workers AI's defaults, except where a comment says otherwise.
func DefaultConfig() Config {
	return Config{
		ScalingFactor: 0.8,
		Scaling: Scaling{EZ: EZ{
			MinUtilization: 0.3, MaxUtilization: 0.8, UtilizationScale: 1,
			UseForecast: true, UseOutOfCap: true,
		}},
		MinCount: 5, MaxCount: 100, DownscaleBatch: 10,
		Management: Full,
		// Ours: one window of the usage query, so that what is measured after
		// the grace was served in the new tier.
		TierGraceSeconds: 900,
	}
}

// Validate names every wrong field at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s is %v: must be %s", field, value, want))
	}
	if !positive(c.ScalingFactor) {
		bad("scaling_factor", c.ScalingFactor, "a finite number above 0")
	}
	if c.MinCount < 0 || c.MinCount > maxCount {
		bad("min_count", c.MinCount, "0 or more")
	}
	if c.MaxCount < 0 || c.MaxCount > maxCount {
		bad("max_count", c.MaxCount, "0 or more")
	}
	if c.MinCount > c.MaxCount {
		bad("min_count", c.MinCount, fmt.Sprintf("at most max_count, which is %d", c.MaxCount))
	}
	if c.DownscaleBatch < 1 {
		bad("downscale_batch", c.DownscaleBatch, "1 or more; to forbid downscaling set management to upscaling")
	}
	switch utilization := c.ModelUtilization || c.Scaling.EZ.Active; {
	case c.MaxConcurrency < 0 || c.MaxConcurrency > maxCount:
		bad("max_concurrent_requests", c.MaxConcurrency, "1 or more")
	case utilization && c.MaxConcurrency == 0:
		bad("max_concurrent_requests", c.MaxConcurrency, "1 or more, because a utilization rule is on; set it to the slots of one instance")
	}
	switch c.Management {
	case Disabled, Manual, Upscaling, Full:
	default:
		bad("management", fmt.Sprintf("%q", string(c.Management)), "disabled, manual, upscaling or full")
	}
	if c.TierGraceSeconds < 0 {
		bad("tier_grace_seconds", c.TierGraceSeconds, "0 or more")
	}
	for _, tier := range sortedKeys(c.TierGraceByTier) {
		if s := c.TierGraceByTier[tier]; s < 0 {
			bad(fmt.Sprintf("tier_grace_seconds_by_tier[%q]", tier), s, "0 or more")
		}
	}
	errs = append(errs, c.Scaling.EZ.validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("utilization config: %w", err)
	}
	return nil
}

// validate looks at the bounds even where the rule is off: a wrong one would wait
// for the day somebody switches it on.
func (e EZ) validate() error {
	var errs []error
	bad := func(field string, value float64, want string) {
		errs = append(errs, fmt.Errorf("scaling_config.utilization_based.%s is %v: must be %s", field, value, want))
	}
	// The comparisons are written so that NaN fails them.
	if !(e.MinUtilization >= 0 && e.MinUtilization < 1) {
		bad("min_utilization", e.MinUtilization, "a share in [0, 1)")
	}
	if !(e.MaxUtilization > 0 && e.MaxUtilization <= 1) {
		bad("max_utilization", e.MaxUtilization, "a share in (0, 1]")
	}
	if e.MinUtilization >= e.MaxUtilization {
		bad("min_utilization", e.MinUtilization, fmt.Sprintf("less than max_utilization, which is %v", e.MaxUtilization))
	}
	if !positive(e.UtilizationScale) {
		bad("utilization_scale", e.UtilizationScale, "a finite number above 0")
	}
	return errors.Join(errs...)
}

func positive(f float64) bool { return f > 0 && !math.IsInf(f, 1) }
