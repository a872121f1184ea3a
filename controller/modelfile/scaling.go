package modelfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"remuda/controller/state"
	"remuda/internal/hclfault"
)

// CheckScaling reports what is wrong with a model's policy: with the strategy's name, or with its
// keys. Each of its errors, which errors.Join may put together, begins with "strategy" or a key.
type CheckScaling func(strategy string, settings map[string]string) error

// Bounds of the time between two evaluations of a policy.
const (
	DefaultInterval = 10 * time.Second
	minInterval     = time.Second
	maxInterval     = 10 * time.Minute
	wantInterval    = `a duration from "1s" to "10m", such as "10s"`
)

// scalingBlock is a model's policy. What is left are the keys of its strategy.
type scalingBlock struct {
	At       hcl.Range      `hcl:",def_range"`
	Strategy *hcl.Attribute `hcl:"strategy,optional"`
	Interval *hcl.Attribute `hcl:"evaluation_interval,optional"`
	Settings hcl.Attributes `hcl:",remain"`
}

func (s scope) scaling(b *scalingBlock) *state.Scaling {
	s.path += "scaling: "
	out := &state.Scaling{Interval: DefaultInterval}
	complete := s.Read(s.path, b.Strategy, &out.Strategy, "the name of a strategy, such as \"remuda-capacity\"")
	if b.Strategy == nil {
		s.Add(b.At, "%sstrategy is missing: set the name of a strategy, such as \"remuda-capacity\"", s.path)
	}
	parsed(s, b.Interval, &out.Interval, wantInterval, func(text string) (time.Duration, error) {
		d, err := parseDuration(text)
		if err != nil || d < minInterval || d > maxInterval {
			return 0, errors.New("must be " + wantInterval)
		}
		return d, nil
	})
	for _, name := range slices.Sorted(maps.Keys(b.Settings)) {
		value, err := settingText(b.Settings[name].Expr)
		if err != nil {
			s.fault(b.Settings[name], "is %s: must be a string, a number, true or false, or an object", hclfault.Found(b.Settings[name].Expr))
			complete = false
			continue
		}
		if out.Settings == nil {
			out.Settings = map[string]string{}
		}
		out.Settings[name] = value
	}
	if !complete || s.check == nil {
		return out
	}
	for _, err := range split(s.check(out.Strategy, out.Settings)) {
		at := b.At
		switch key, _, _ := strings.Cut(err.Error(), " "); {
		case b.Settings[key] != nil:
			at = b.Settings[key].Expr.Range()
		case key == "strategy":
			at = b.Strategy.Expr.Range()
		}
		s.Add(at, "%s%v", s.path, err)
	}
	return out
}

// settingText is a value as strategies read it: an object as JSON.
func settingText(e hcl.Expression) (string, error) {
	v, diags := e.Value(nil)
	switch {
	case diags.HasErrors():
		return "", diags
	case v.IsNull() || !v.IsWhollyKnown():
		return "", errors.New("no value")
	case v.Type().IsPrimitiveType():
		text, err := convert.Convert(v, cty.String)
		if err != nil {
			return "", err
		}
		return text.AsString(), nil
	}
	raw, err := ctyjson.Marshal(v, v.Type())
	if err != nil {
		return "", fmt.Errorf("write as JSON: %w", err)
	}
	return string(raw), nil
}

// split takes apart what errors.Join has put together.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the parts are wanted, not one of them
		return many.Unwrap()
	}
	return []error{err}
}
