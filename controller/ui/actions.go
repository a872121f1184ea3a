package ui

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"remuda/controller/api"
)

// cordonData is what the page shows that confirms a cordon, or its end.
type cordonData struct {
	Node api.Node
	// GPU is the UUID of the one GPU, empty for all of the node.
	GPU string
	On  bool
	planned
}

// planned is what the controller would do, or why that is not known.
type planned struct {
	Plan      api.PlanResponse
	PlanError string
}

// plan asks what a change would lead to. A plan may be refused where the change is not; an unknown name is
// an error of the page.
func (v *visit) plan(r api.PlanRequest) (planned, error) {
	var out planned
	var err error
	if out.Plan, err = v.api.Plan(v.ctx, r); err != nil {
		out.PlanError = err.Error()
	}
	var rejected *api.Error
	if errors.As(err, &rejected) && (rejected.Status == http.StatusUnauthorized || rejected.Status == http.StatusNotFound) {
		return out, err
	}
	return out, nil
}

func loadCordon(v *visit) (any, error) {
	s, _, err := v.api.Node(v.ctx, v.query.Get("node"), api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	d := cordonData{Node: s.Node, GPU: v.query.Get("gpu"), On: v.query.Get("on") == "true"}
	if !d.On {
		v.Title = "Uncordon"
	}
	d.planned, err = v.plan(api.PlanRequest{Cordon: &api.PlannedCordon{Node: s.Node.ID, GPU: d.GPU, On: d.On}})
	return d, err
}

// cordon cordons a GPU or all of a node, or uncordons them.
func (u *UI) cordon(w http.ResponseWriter, r *http.Request) {
	v := u.form(r)
	n, err := v.api.Cordon(v.ctx, r.PostFormValue("node"), api.CordonRequest{
		GPU: r.PostFormValue("gpu"), On: r.PostFormValue("on") == "true", Reason: r.PostFormValue("reason"),
	})
	if err != nil {
		u.fail(w, v, err)
		return
	}
	http.Redirect(w, r, nodeLink(n.ID), http.StatusSeeOther)
}

// form is a visit that changes something. After a login the person starts again at the overview.
func (u *UI) form(r *http.Request) *visit {
	v := u.visit(r)
	v.identify()
	v.from = Path
	return v
}

// evictData is what the page shows that confirms an eviction.
type evictData struct {
	api.EvictRequest
	// Tiers are where the replicas may go, Forces whether the model's protection counts.
	Tiers, Forces []choice
	planned
}

// choice is one way to order the eviction, with the page that plans for it.
type choice struct {
	Name, Link string
	Chosen     bool
}

func evictRequest(q url.Values) api.EvictRequest {
	e := api.EvictRequest{Replica: q.Get("replica"), Model: q.Get("model"), To: q.Get("to"), Force: q.Get("force") == "true"}
	switch e.To {
	case "end":
		e.To = ""
	case "":
		e.To = "WARM"
	}
	return e
}

func loadEvict(v *visit) (any, error) {
	d := evictData{EvictRequest: evictRequest(v.query)}
	link := func(to string, force bool) string {
		q := url.Values{"replica": {d.Replica}, "model": {d.Model}, "to": {to}, "force": {strconv.FormatBool(force)}}
		return evictPath + "?" + q.Encode()
	}
	to := cmp.Or(d.To, "end")
	for _, tier := range []string{"WARM", "COLD", "end"} {
		d.Tiers = append(d.Tiers, choice{Name: tier, Link: link(tier, d.Force), Chosen: tier == to})
	}
	for force, name := range map[bool]string{false: "no", true: "yes"} {
		d.Forces = append(d.Forces, choice{Name: name, Link: link(to, force), Chosen: force == d.Force})
	}
	slices.SortFunc(d.Forces, func(a, b choice) int { return cmp.Compare(a.Name, b.Name) })
	var err error
	d.planned, err = v.plan(api.PlanRequest{Evict: &d.EvictRequest})
	return d, err
}

// evict orders an eviction and shows what becomes of each replica.
func (u *UI) evict(w http.ResponseWriter, r *http.Request) {
	v := u.form(r)
	if err := r.ParseForm(); err != nil {
		u.fail(w, v, &api.Error{Status: http.StatusBadRequest, Message: "read the form: " + err.Error()})
		return
	}
	done, err := v.api.Evict(v.ctx, evictRequest(r.PostForm))
	if err != nil {
		u.fail(w, v, err)
		return
	}
	v.Here, v.Title = &page{Still: true}, "Evicted"
	u.show(w, v, http.StatusOK, "evicted", done)
}

// revertData is what the page shows that confirms a revert.
type revertData struct {
	Model string
	// To is the version to return to, From the model's own.
	To   api.Version
	From int
	planned
}

func loadRevert(v *visit) (any, error) {
	d := revertData{Model: v.query.Get("model")}
	number, err := strconv.Atoi(v.query.Get("version"))
	if err != nil || number < 1 {
		return nil, &api.Error{Status: http.StatusBadRequest, Message: "version is " + strconv.Quote(v.query.Get("version")) + ": must be the number of a version"}
	}
	versions, _, err := v.api.ModelVersions(v.ctx, d.Model, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	for _, version := range versions {
		if version.Number == number {
			d.To = version
		}
		if version.Current {
			d.From = version.Number
		}
	}
	d.planned, err = v.plan(api.PlanRequest{Revert: &api.PlannedRevert{Model: d.Model, Version: number}})
	return d, err
}

// revert returns a model to an earlier version.
func (u *UI) revert(w http.ResponseWriter, r *http.Request) {
	v := u.form(r)
	number, err := strconv.Atoi(r.PostFormValue("version"))
	if err != nil || number < 1 {
		u.fail(w, v, &api.Error{Status: http.StatusBadRequest, Message: "version is " + strconv.Quote(r.PostFormValue("version")) + ": must be the number of a version"})
		return
	}
	if _, err := v.api.RevertModel(v.ctx, r.PostFormValue("model"), api.RevertRequest{Version: number}); err != nil {
		u.fail(w, v, err)
		return
	}
	http.Redirect(w, r, modelLink(r.PostFormValue("model")), http.StatusSeeOther)
}
