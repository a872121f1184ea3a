package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/nomad"
	"remuda/controller/state"
	"remuda/internal/hclfault"
)

const (
	// checksAtOnce is how many jobs Nomad checks at the same time for one request.
	checksAtOnce = 4
	// applyTries is how often a file is compared anew because a model of it changed
	// meanwhile, as by a scale. Each is one commit; against somebody who scales without
	// a pause about every second one is lost.
	applyTries = 100
)

func (s *Server) applyModels(rq *request, v *state.View) (answer, error) {
	var body api.ApplyRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	models, err := s.modelsOf(body.Files, body.Jobs)
	if err != nil {
		return answer{}, err
	}
	if err := checkCAS(body.CAS, models); err != nil {
		return answer{}, err
	}
	// What Nomad has to say does not depend on what is there now: it is asked once.
	warnings, err := s.check(rq.ctx, models, v)
	if err != nil {
		return answer{}, err
	}
	a := application{models: models, warnings: warnings, cas: body.CAS, dryRun: body.DryRun, what: "applied a model file"}
	out, err := s.applyAll(rq, a, v)
	return answer{value: out}, err
}

// modelsOf reads model files.
func (s *Server) modelsOf(files []api.SourceFile, jobs map[string]string) ([]state.Model, error) {
	if len(files) == 0 {
		return nil, badRequest("field \"Files\" is empty: at least one model file is required")
	}
	source := modelfile.Source{Jobs: jobs}
	for _, f := range files {
		source.Files = append(source.Files, modelfile.File(f))
	}
	models, err := source.Models(s.cfg.CheckScaling)
	if err != nil {
		return nil, fileError(err)
	}
	return models, nil
}

// application is what models should become.
type application struct {
	models   []state.Model
	warnings map[string][]string
	cas      map[string]uint64
	dryRun   bool
	what     string // for decisions: what somebody did
	again    bool   // a definition that was rolled back is tried again
}

// applyAll applies models, all or none.
func (s *Server) applyAll(rq *request, a application, v *state.View) (api.ApplyResponse, error) {
	for try := 1; ; try++ {
		out, err := s.applyOnce(rq, a, v)
		// Without a CAS of the caller's own the models are compared with what is there now.
		if !errors.Is(err, state.ErrConflict) && !errors.Is(err, state.ErrNotFound) || len(a.cas) > 0 || try == applyTries {
			return out, err
		}
		v = s.cfg.Raft.Store().View()
	}
}

func (s *Server) applyOnce(rq *request, ap application, v *state.View) (api.ApplyResponse, error) {
	out := api.ApplyResponse{DryRun: ap.dryRun, Models: []api.AppliedModel{}}
	ask := &state.UpsertModels{}
	now := s.cfg.Now()
	var stale []string
	for _, m := range ap.models {
		old := v.Model(nil, m.Name)
		var have uint64
		if old != nil {
			have = old.ModifyIndex
		}
		want, given := ap.cas[m.Name]
		if given && want != have {
			stale = append(stale, casConflict(m.Name, have, want))
			continue
		}
		a := compare(v, old, m, ap.again)
		a.Warnings = append(a.Warnings, ap.warnings[m.Name]...)
		out.Models = append(out.Models, a)
		if !a.Unchanged {
			ask.Models = append(ask.Models, state.UpsertModel{Model: m, ModifyIndex: have, Time: now})
		}
	}
	if len(stale) > 0 {
		return out, conflict("%s", strings.Join(stale, "\n"))
	}
	if ap.dryRun || len(ask.Models) == 0 {
		return out, nil
	}
	var decisions []state.Decision
	for i := range out.Models {
		if a := &out.Models[i]; !a.Unchanged {
			decisions = append(decisions, applied(a, by(rq.token)+" "+ap.what))
		}
	}
	cmd, refused := ask.Resolve(v)
	if refused != nil {
		return out, refused
	}
	res, err := s.decide(rq, cmd, decisions...)
	if err != nil {
		return out, err
	}
	out.Index = res.Index
	after := s.cfg.Raft.Store().View()
	for i := range out.Models {
		a := &out.Models[i]
		if m := after.Model(nil, a.Name); m != nil {
			a.ModifyIndex, a.Version, a.Replicas = m.ModifyIndex, m.Version, after.Target(nil, m).Replicas
		}
	}
	return out, nil
}

func casConflict(name string, have, want uint64) string {
	switch {
	case have == 0:
		return fmt.Sprintf("model %q does not exist: the request expects index %d", name, want)
	case want == 0:
		return fmt.Sprintf("model %q already exists at index %d: the request expects a new model", name, have)
	}
	return fmt.Sprintf("model %q has changed since it was read: its index is %d, not %d", name, have, want)
}

func applied(a *api.AppliedModel, deed string) state.Decision {
	d := state.Decision{Model: a.Name, Kind: "apply", Details: map[string]string{}}
	if a.New {
		d.Reason = deed + ": new model"
		return d
	}
	paths := make([]string, len(a.Changes))
	for i, c := range a.Changes {
		paths[i] = c.Path
		// A job's text is too long, and what a job is given may be a secret.
		if len(c.Lines) == 0 && !strings.Contains(c.Path, ": vars: ") {
			d.Details[c.Path] = fmt.Sprintf("%s -> %s", c.Old, c.New)
		}
	}
	d.Reason = fmt.Sprintf("%s: changed %s", deed, strings.Join(paths, ", "))
	return d
}

// compare says what becomes of a model.
func compare(v *state.View, old *state.Model, m state.Model, again bool) api.AppliedModel {
	a := api.AppliedModel{Name: m.Name, New: old == nil, Changes: []api.Change{}, Warnings: []string{}}
	if old != nil {
		a.ModifyIndex, a.Version = old.ModifyIndex, old.Version
		a.Unchanged = old.Hash == m.Hash && !old.Stopped
		if !m.Rescales(old) {
			m.Desired, m.Displaced = old.Desired, old.Displaced
		}
		a.Warnings = append(a.Warnings, overridden(v, old, &m)...)
	}
	a.Replicas = v.Target(nil, &m).Replicas
	if why := rolledBack(v, old, &m); why != "" && !again {
		a.Unchanged = true
		a.Warnings = append(a.Warnings, why)
	}
	if a.Unchanged {
		return a
	}
	rolls := false
	for _, c := range modelfile.Diff(old, &m) {
		a.Changes = append(a.Changes, changeOf(c))
		rolls = rolls || c.Rolls
	}
	a.Warnings = append(a.Warnings, gap(old, &m, a.Replicas, rolls)...)
	if old != nil && old.Stopped {
		a.Changes = append(a.Changes, api.Change{Path: "stopped", Old: "true", New: "false", Text: "~ stopped: true -> false"})
	}
	return a
}

// gap warns that the only replica of a changed model makes way for its successor.
func gap(old, m *state.Model, replicas int, rolls bool) []string {
	if old == nil || !rolls || replicas != 1 || m.MinAvailable(1) > 0 {
		return nil
	}
	when := "with \"update { surge = 0 }\""
	if m.Surge() > 0 {
		when = "if there is no room for a second one (\"update\" has min_available = 0)"
	}
	return []string{fmt.Sprintf("the model has one replica, which goes before its successor serves %s: nothing serves meanwhile, and requests wait in the gateways: "+
		"for a drain and a wake if the successor can load beside it and go WARM, and for a whole load otherwise", when)}
}

// rolledBack says that a definition is the one that the model has last been rolled back from,
// empty where it is not. A file that is applied on a timer must not try it again each time.
func rolledBack(v *state.View, old, m *state.Model) string {
	if old == nil || old.Stopped {
		return ""
	}
	for name, r := range old.Rollouts {
		if was := v.Versions(nil, m.Name).Get(r.Version); r.Status == state.RolloutRolledBack && was != nil && was.Model.Hash == m.Hash {
			return fmt.Sprintf("version %d with this definition was rolled back because of variant %q: %s: change the file, or try it again with \"remuda model revert %s %d\"",
				r.Version, name, strings.TrimSuffix(r.Reason, "."), m.Name, r.Version)
		}
	}
	return ""
}

func changeOf(c modelfile.Change) api.Change {
	return api.Change{Path: c.Path, Old: c.Old, New: c.New, Lines: c.Lines, ReplacesReplicas: c.Rolls, Text: c.String()}
}

// overridden warns that the number of replicas in a file is not the model's scale, where
// people alone scale it.
func overridden(v *state.View, old, m *state.Model) []string {
	replicas := m.Desired.Total()
	if m.FileReplicas == nil || replicas == *m.FileReplicas || old.Management == state.ManagementUpscaling || old.Management == state.ManagementFull {
		return nil
	}
	why := "it was scaled since the file was applied"
	for _, d := range v.Decisions(nil, m.Name, 0) {
		if d.Kind == "scale" {
			why = d.Reason
			break
		}
	}
	return []string{fmt.Sprintf("replicas is %d in the file and remains %d: %s", *m.FileReplicas, replicas, why)}
}

// fileError has every fault of a file with its line.
func fileError(err error) error {
	var faults hclfault.Faults
	if !errors.As(err, &faults) {
		return badRequest("%v", err)
	}
	return faultsError(faults)
}

// faultsError has every fault of a file with its line.
func faultsError(faults hclfault.Faults) error {
	e := &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: faults.Error()}
	for _, f := range faults {
		e.Faults = append(e.Faults, api.Fault(f))
	}
	return e
}

// checkCAS refuses an index of a model that the file does not have: it would protect
// nothing.
func checkCAS(cas map[string]uint64, models []state.Model) error {
	var strange []string
	for _, name := range slices.Sorted(maps.Keys(cas)) {
		if !slices.ContainsFunc(models, func(m state.Model) bool { return m.Name == name }) {
			strange = append(strange, fmt.Sprintf("%q", name))
		}
	}
	if len(strange) > 0 {
		return badRequest("CAS lists %s, which the file does not define", strings.Join(strange, ", "))
	}
	return nil
}

// check has Nomad check every variant of the models that are not just as they are
// already. It returns Nomad's warnings by model, or all that is wrong with any of them.
func (s *Server) check(ctx context.Context, models []state.Model, v *state.View) (map[string][]string, error) {
	type result struct {
		model, variant, warnings string
		err                      error
	}
	var results []*result
	var wg sync.WaitGroup
	slots := make(chan struct{}, checksAtOnce)
	for _, m := range models {
		if old := v.Model(nil, m.Name); old != nil && old.Hash == m.Hash {
			continue
		}
		for _, variant := range m.Variants {
			r := &result{model: m.Name, variant: variant.Name}
			results = append(results, r)
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				r.warnings, r.err = s.cfg.Nomad.Check(ctx, m, variant)
			})
		}
	}
	wg.Wait()
	warnings := map[string][]string{}
	var wrong []error
	for _, r := range results {
		if r.err != nil {
			if !errors.Is(r.err, nomad.ErrRefused) {
				// Without an answer nothing can be said of the others either.
				return nil, fmt.Errorf("model %q: variant %q: %w", r.model, r.variant, r.err)
			}
			wrong = append(wrong, fmt.Errorf("model %q: variant %q: %w", r.model, r.variant, r.err))
		}
		if r.warnings != "" {
			warnings[r.model] = append(warnings[r.model], fmt.Sprintf("variant %q: %s", r.variant, r.warnings))
		}
	}
	return warnings, errors.Join(wrong...)
}
