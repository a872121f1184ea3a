package ui

import (
	"maps"
	"slices"
	"strings"

	"remuda/controller/api"
)

// modelData is what the page of a model shows.
type modelData struct {
	api.ModelStatus
	Queue    api.QueueStatus
	Versions []api.Version
	Variants []variantRow
	Rollouts []rolloutRow
	Replicas []replicaRow
	// ReplicasTotal is how many there are; Replicas has the first maxRows.
	ReplicasTotal int
}

// variantRow is a variant with its replicas.
type variantRow struct {
	api.Variant
	Counts api.Counts
	// Gone: the model has it no more, and replicas of it are left.
	Gone bool
	// Unplaceable is why no further replica gets a place.
	Unplaceable string
}

// rolloutRow is a rollout with its variant.
type rolloutRow struct {
	Variant string
	api.Rollout
}

// replicaRow is a replica as a table shows it.
type replicaRow struct {
	api.Replica
	// GPUs are the UUIDs of those that it has a seat on.
	GPUs []string
	// Notes are what is unusual about it, and why it does not serve.
	Notes []string
}

func loadModel(v *visit) (any, error) {
	name := v.query.Get("name")
	v.Title = "Model " + name
	m, meta, err := v.api.Model(v.ctx, name, v.watch)
	if err != nil {
		return nil, err
	}
	v.index = meta.Index
	d := modelData{ModelStatus: m}
	if d.Queue, err = v.api.Queue(v.ctx, name); err != nil {
		return nil, err
	}
	if d.Versions, _, err = v.api.ModelVersions(v.ctx, name, api.QueryOptions{}); err != nil {
		return nil, err
	}
	for _, variant := range m.Model.Variants {
		d.Variants = append(d.Variants, variantRow{Variant: variant, Counts: m.VariantCounts[variant.Name], Unplaceable: m.Unplaceable[variant.Name]})
		delete(m.VariantCounts, variant.Name)
	}
	for _, gone := range slices.Sorted(maps.Keys(m.VariantCounts)) {
		d.Variants = append(d.Variants, variantRow{Variant: api.Variant{Name: gone}, Counts: m.VariantCounts[gone], Gone: true})
	}
	for _, variant := range slices.Sorted(maps.Keys(m.Model.Rollouts)) {
		d.Rollouts = append(d.Rollouts, rolloutRow{variant, m.Model.Rollouts[variant]})
	}
	d.ReplicasTotal = len(m.Replicas)
	for _, r := range m.Replicas[:min(len(m.Replicas), maxRows)] {
		d.Replicas = append(d.Replicas, replicaRowOf(r))
	}
	return d, nil
}

func replicaRowOf(r api.Replica) replicaRow {
	row := replicaRow{Replica: r}
	for _, seat := range r.Seats {
		gpu, _, _ := strings.Cut(seat, "#")
		if !slices.Contains(row.GPUs, gpu) {
			row.GPUs = append(row.GPUs, gpu)
		}
	}
	note := func(when bool, text string) {
		if when {
			row.Notes = append(row.Notes, text)
		}
	}
	note(r.Canary, "canary")
	note(!r.Current, "outdated definition")
	note(r.Failures > 0, plural(r.Failures, "failure", "failures"))
	note(r.LastError != "", r.LastError)
	note(r.NotServing != "", "does not serve: "+r.NotServing)
	note(r.MakesRoomFor != "", "makes room for "+r.MakesRoomFor)
	note(r.OutOfUse != "", "out of use: "+r.OutOfUse)
	return row
}
