package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/state"
)

func (s *Server) listVersions(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableModels, state.TableVersions, state.TableReplicas)
	m := v.Model(ws, rq.PathValue("model"))
	if m == nil {
		return answer{index: index}, noModel(v, rq.PathValue("model"))
	}
	replicas := map[int]int{}
	for _, r := range v.ReplicasOf(ws, m.Name) {
		if r.Status != state.StatusCold {
			replicas[r.Version]++
		}
	}
	var out []api.Version
	var before *state.Model
	for _, version := range v.Versions(ws, m.Name) {
		n := version.Number
		one := api.Version{Number: n, Time: version.Time, Current: n == m.Version, Stable: n == m.StableVersion, Replicas: replicas[n], Hash: version.Model.Hash, Changes: []api.Change{}}
		for variant, r := range m.Rollouts {
			if r.Status == state.RolloutRolledBack && r.Version == n {
				one.RolledBack = fmt.Sprintf("variant %q: %s", variant, r.Reason)
			}
		}
		if before != nil {
			one.Changes = list(modelfile.Diff(before, fileOf(version)), changeOf)
		}
		before = fileOf(version)
		out = append(out, one)
	}
	slices.Reverse(out)
	return answer{index: index, value: out}, nil
}

// fileOf returns a version's model with the scale of its file, none where that has none.
func fileOf(v *state.Version) *state.Model {
	m := v.Model
	if m.FileReplicas == nil {
		m.Desired = nil
	}
	return &m
}

// versionFrom returns the version of a model that a caller names by its number.
func versionFrom(m *state.Model, versions state.Versions, number int) (*state.Version, error) {
	if version := versions.Get(number); version != nil {
		return version, nil
	}
	var kept []string
	for _, v := range versions {
		kept = append(kept, strconv.Itoa(v.Number))
	}
	return nil, notFound("model %q has no version %d: its versions are %s", m.Name, number, strings.Join(kept, ", "))
}

// revertTarget returns the version that a model is reverted to: that of a number, or for 0 the newest with
// another definition than the model has.
func revertTarget(v *state.View, m *state.Model, number int) (*state.Version, error) {
	versions := v.Versions(nil, m.Name)
	if number != 0 {
		return versionFrom(m, versions, number)
	}
	var to *state.Version
	for _, version := range versions {
		if version.Number < m.Version && version.Model.Hash != m.Hash {
			to = version
		}
	}
	if to == nil {
		return nil, conflict("model %q has no version before %d: see \"remuda model history %s\"", m.Name, m.Version, m.Name)
	}
	return to, nil
}

func (s *Server) revertModel(rq *request, v *state.View) (answer, error) {
	var body api.RevertRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	m := v.Model(nil, rq.PathValue("model"))
	if m == nil {
		return answer{}, noModel(v, rq.PathValue("model"))
	}
	to, err := revertTarget(v, m, body.Version)
	if err != nil {
		return answer{}, err
	}
	models := []state.Model{to.Model}
	warnings, err := s.check(rq.ctx, models, v)
	if err != nil {
		return answer{}, err
	}
	a := application{models: models, warnings: warnings, again: true, what: fmt.Sprintf("reverted the model to version %d", to.Number)}
	if body.CAS != nil {
		a.cas = map[string]uint64{m.Name: *body.CAS}
	}
	out, err := s.applyAll(rq, a, v)
	if err != nil {
		return answer{}, err
	}
	return answer{value: out.Models[0]}, nil
}
