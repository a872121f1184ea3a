package usage

import (
	"errors"
	"fmt"

	"remuda/controller/api"
	"remuda/controller/state"
)

// Validate returns all errors of the usage in a report.
func Validate(r api.GatewayReport) error {
	if n := len(r.Usage); n > api.MaxReportUsage {
		return fmt.Errorf("usage has %d entries: must be at most %d", n, api.MaxReportUsage)
	}
	var errs []error
	seen := map[string]bool{}
	for _, m := range marksOf(r) {
		if err := m.Check(); err != nil {
			errs = append(errs, fmt.Errorf("usage: %w", err))
			continue
		}
		if seen[m.ID()] {
			errs = append(errs, fmt.Errorf("duplicate usage of key %q and model %q on %s", m.Key, m.Model, m.Day))
		}
		seen[m.ID()] = true
		switch u := m.Usage; {
		case u.CachedTokens > u.PromptTokens:
			errs = append(errs, fmt.Errorf("usage of key %q and model %q: %d cached tokens: must be at most the tokens of prompts, %d", m.Key, m.Model, u.CachedTokens, u.PromptTokens))
		case u.EstimatedTokens > u.Tokens():
			errs = append(errs, fmt.Errorf("usage of key %q and model %q: %d estimated tokens: must be at most all tokens, %d", m.Key, m.Model, u.EstimatedTokens, u.Tokens()))
		}
	}
	return errors.Join(errs...)
}

// marksOf returns the marks that there will be once a report is counted.
func marksOf(r api.GatewayReport) []state.UsageMark {
	marks := make([]state.UsageMark, len(r.Usage))
	for i, u := range r.Usage {
		marks[i] = state.UsageMark{Day: u.Day, Gateway: r.Gateway, Since: r.Since, Key: u.Key, Model: u.Model, Usage: state.Usage(u.Usage)}
	}
	return marks
}
