package plugin_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
)

// controller is a little one: it has one model and compares indexes.
type controller struct {
	status api.ModelStatus
	down   error
	hangs  bool
	asked  []api.ScaleRequest
}

func (c *controller) Model(ctx context.Context, name string, _ api.QueryOptions) (api.ModelStatus, api.QueryMeta, error) {
	if c.hangs {
		<-ctx.Done()
		return api.ModelStatus{}, api.QueryMeta{}, ctx.Err()
	}
	if c.down != nil {
		return api.ModelStatus{}, api.QueryMeta{}, c.down
	}
	if name != c.status.Model.Name {
		return api.ModelStatus{}, api.QueryMeta{}, &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: "there is no model " + name}
	}
	return c.status, api.QueryMeta{}, nil
}

func (c *controller) Scale(_ context.Context, model string, r api.ScaleRequest) (api.ScaleResponse, error) {
	c.asked = append(c.asked, r)
	if c.down != nil {
		return api.ScaleResponse{}, c.down
	}
	if r.CAS != nil && *r.CAS != c.status.Model.ModifyIndex {
		return api.ScaleResponse{}, &api.Error{Status: http.StatusConflict, Code: api.CodeConflict, Message: "the index is another"}
	}
	sum := r.Replicas
	for _, n := range r.Variants {
		sum += n
	}
	changed := sum != c.status.Model.Target
	c.status.Model.Target, c.status.Model.Replicas = sum, sum
	c.status.Model.ModifyIndex++
	return api.ScaleResponse{Model: model, Target: sum, Changed: changed, ModifyIndex: c.status.Model.ModifyIndex}, nil
}

var scaledAt = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func targetWorld(t *testing.T) (*controller, *plugin.Target) {
	t.Helper()
	c := &controller{status: api.ModelStatus{
		Model: api.Model{Name: "m", Variants: []api.Variant{{Name: "h100", Cost: 8}, {Name: "l4", Cost: 1}}, Min: 0, Max: 9,
			Management: "full", Replicas: 3, Target: 3, ModifyIndex: 42},
		Counts:        api.Counts{Hot: 2, Starting: 1, Leaving: 1, Warm: 2},
		VariantCounts: map[string]api.Counts{"h100": {Hot: 1}, "l4": {Hot: 1, Starting: 1, Leaving: 1, Warm: 2}},
		LastScaledAt:  scaledAt.Add(-time.Minute),
	}}
	p := plugin.NewTarget(plugin.TargetConfig{Name: "remuda-autoscaler", Now: func() time.Time { return scaledAt },
		Connect: func(api.Config) (plugin.Controller, error) { return c, nil }})
	require.NoError(t, p.SetConfig(map[string]string{"controller": "http://c:1", "nomad_address": "x"}))
	return c, p
}

var policy = map[string]string{"model": "m", "Namespace": "default"}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(*controller)
		ready bool
		count int64
		meta  map[string]string
	}{
		{name: "starting replicas count, draining and warm ones do not", edit: func(*controller) {}, ready: true, count: 3,
			meta: map[string]string{plugin.MetaModelIndex: "42", plugin.MetaDraining: "1", plugin.MetaStarting: "1", plugin.MetaWarm: "2", plugin.MetaPending: "0"}},
		{name: "what is ordered and not placed yet counts", edit: func(c *controller) { c.status.Model.Target = 6 }, ready: true, count: 6,
			meta: map[string]string{plugin.MetaPending: "3"}},
		{name: "what has no place does not", edit: func(c *controller) {
			c.status.Model.Target = 6
			c.status.Unplaceable = map[string]string{"h100": "no node has 80 GiB", "l4": "no L4 is free"}
		}, ready: true, count: 3, meta: map[string]string{plugin.MetaPending: "3"}},
		{name: "what was ordered of a variant without a place does not", edit: func(c *controller) {
			c.status.Model.Target, c.status.Model.Desired = 6, []api.Share{{Variant: "h100", Replicas: 3}, {Variant: "l4", Replicas: 3}}
			c.status.Unplaceable = map[string]string{"h100": "no node has 80 GiB"}
		}, ready: true, count: 4, meta: map[string]string{plugin.MetaPending: "3"}},
		{name: "what is to go and does not drain yet does not", edit: func(c *controller) {
			c.status.Model.Target, c.status.Model.Desired = 1, []api.Share{{Variant: "h100"}, {Variant: "l4", Replicas: 1}}
		}, ready: true, count: 1},
		{name: "stopped", edit: func(c *controller) { c.status.Model.Stopped, c.status.Model.Target = true, 0 }, count: 0},
		{name: "managed by people", edit: func(c *controller) { c.status.Model.Management = "manual" }, count: 3},
		{name: "the kill switch", edit: func(c *controller) { c.status.Limits.ScalingDisabled = true }, count: 3},
		{name: "capped below what was ordered", edit: func(c *controller) {
			c.status.Model.Target, c.status.Model.Bound, c.status.Model.Desired = 2, "cap", []api.Share{{Variant: "h100", Replicas: 1}, {Variant: "l4", Replicas: 2}}
		}, ready: true, count: 2},
		{name: "what is displaced does not", edit: func(c *controller) {
			m := &c.status.Model
			m.Target, m.Bound, m.Desired = 1, "displaced", []api.Share{{Variant: "h100", Replicas: 2}, {Variant: "l4", Replicas: 2}}
			m.Displaced = api.Displaced{UntilRoom: []api.Share{{Variant: "h100", Replicas: 1}}, UntilAsked: []api.Share{{Variant: "l4", Replicas: 2}}}
		}, ready: true, count: 1},
		{name: "the controller is away", edit: func(c *controller) { c.down = errors.New("connection refused") }, count: 0,
			meta: map[string]string{plugin.MetaWhy: "connection refused"}},
		{name: "no such model", edit: func(c *controller) { c.status.Model.Name = "other" }, count: 0,
			meta: map[string]string{plugin.MetaWhy: "there is no model m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl, p := targetWorld(t)
			c.edit(ctl)
			got, err := p.Status(policy)
			require.NoError(t, err, "an error would keep nomad-autoscaler from ever starting the policy")
			require.Equal(t, c.ready, got.Ready)
			require.Equal(t, c.count, got.Count)
			require.Subset(t, got.Meta, c.meta)
			if c.ready {
				require.Equal(t, strconv.FormatInt(scaledAt.Add(-time.Minute).UnixNano(), 10), got.Meta[sdk.TargetStatusMetaKeyLastEvent])
			} else {
				require.NotEmpty(t, got.Meta[plugin.MetaWhy])
			}
		})
	}
}

// What the target says and what the strategies see is one number, whatever was ordered and
// is there.
func TestTheCountIsThatOfTheStrategies(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c, _ := targetWorld(t)
		st := &c.status
		n := func(label string) int { return rapid.IntRange(0, 3).Draw(r, label) }
		st.Model.Target, st.Model.Desired = 0, nil
		for _, v := range []string{"h100", "l4"} {
			if rapid.Bool().Draw(r, "ordered alone") {
				ordered := n("ordered")
				st.Model.Desired = append(st.Model.Desired, api.Share{Variant: v, Replicas: ordered})
				st.Model.Target += ordered
			}
			st.VariantCounts[v] = api.Counts{Hot: n("hot"), Starting: n("starting"), Failed: n("failed"), Warm: n("warm"), Leaving: n("leaving")}
			if rapid.Bool().Draw(r, "unplaceable") {
				st.Unplaceable = map[string]string{v: "no place"}
			}
		}
		if len(st.Model.Desired) < 2 {
			st.Model.Target += n("rest")
		}
		m, err := observe.NewController(c, nil).Model(t.Context(), "m")
		require.NoError(r, err)
		require.Equal(r, plugin.Count(st), observe.Snapshot{Variants: m.Variants}.Current())
		for _, v := range m.Variants {
			require.Equal(r, v.Current, v.Hot+v.Starting+v.Failed, v.Variant)
		}
	})
}

func TestLastEventIsNotInTheFuture(t *testing.T) {
	ctl, p := targetWorld(t)
	ctl.status.LastScaledAt = scaledAt.Add(time.Hour)
	got, err := p.Status(policy)
	require.NoError(t, err)
	require.Equal(t, strconv.FormatInt(scaledAt.UnixNano(), 10), got.Meta[sdk.TargetStatusMetaKeyLastEvent])
}

func TestStatusAnswersBeforeNomadAutoscalerGivesUp(t *testing.T) {
	ctl, p := targetWorld(t)
	ctl.hangs = true
	took := statusLimit
	for try := 0; took >= statusLimit && try < 3; try++ { // a loaded machine may be slow by itself once
		start := time.Now()
		got, err := p.Status(map[string]string{"model": "m", "_nomad_autoscaler_grpc_timeout": "40ms"})
		require.NoError(t, err)
		require.False(t, got.Ready)
		took = time.Since(start)
	}
	require.Less(t, took, statusLimit)
}

// statusLimit is well below what Status takes without nomad-autoscaler's word.
const statusLimit = 3 * time.Second

func noOp(t *testing.T, err error) {
	t.Helper()
	var none *sdk.TargetScalingNoOpError
	require.ErrorAs(t, err, &none)
}

func action(count int64, meta map[string]any) sdk.ScalingAction {
	return sdk.ScalingAction{Count: count, Reason: "because", Direction: sdk.ScaleDirectionUp, Meta: meta}
}

func TestScaleSendsOneCallWithAbsoluteNumbers(t *testing.T) {
	ctl, p := targetWorld(t)
	up := action(5, map[string]any{plugin.ActionModel: "m", plugin.ActionTargets: `{"h100":1,"l4":4}`, plugin.ActionIndex: "42"})
	require.NoError(t, p.Scale(up, policy))
	require.Equal(t, []api.ScaleRequest{{Variants: map[string]int{"h100": 1, "l4": 4}, Reason: "because", Origin: "autoscaler", CAS: new(uint64(42))}}, ctl.asked)
	noOp(t, p.Scale(up, policy)) // the same decision again, as a second autoscaler would have it
	require.Equal(t, 5, ctl.status.Model.Target)
}

func TestScaleAfterTheAnswerWasLostDoesNotAddTwice(t *testing.T) {
	ctl, p := targetWorld(t)
	up := action(5, map[string]any{plugin.ActionTargets: `{"h100":1,"l4":4}`, plugin.ActionIndex: "42"})
	ctl.down = errors.New("the connection broke off")
	require.ErrorContains(t, p.Scale(up, policy), "scale model m: the connection broke off")
	ctl.down = nil
	ctl.status.Model.Target, ctl.status.Model.ModifyIndex = 5, 43 // it had happened
	noOp(t, p.Scale(up, policy))
	require.Equal(t, 5, ctl.status.Model.Target)
}

func TestScaleWithoutVariants(t *testing.T) {
	ctl, p := targetWorld(t)
	_, err := p.Status(policy)
	require.NoError(t, err)
	require.NoError(t, p.Scale(action(4, nil), policy))
	require.Equal(t, api.ScaleRequest{Replicas: 4, Reason: "because", Origin: "autoscaler", CAS: new(uint64(42))}, ctl.asked[0], "compared with what Status saw")
	noOp(t, p.Scale(action(7, nil), policy))
}

func TestScaleSharesOutWhatThePolicysBoundsChanged(t *testing.T) {
	for _, c := range []struct {
		name  string
		count int64
		want  map[string]int
	}{
		{"max: less is added", 4, map[string]int{"h100": 1, "l4": 3}},
		{"max below what there is: the most expensive goes", 2, map[string]int{"h100": 0, "l4": 2}},
		{"min: the cheapest grows", 9, map[string]int{"h100": 1, "l4": 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl, p := targetWorld(t)
			require.NoError(t, p.Scale(action(c.count, map[string]any{plugin.ActionTargets: `{"h100":1,"l4":5}`, plugin.ActionIndex: "42"}), policy))
			require.Equal(t, c.want, ctl.asked[0].Variants)
		})
	}
}

func TestScaleRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		action sdk.ScalingAction
		config map[string]string
		want   string
	}{
		{"another model", action(4, map[string]any{plugin.ActionModel: "n"}), policy, "the strategy decided for model n"},
		{"no JSON", action(4, map[string]any{plugin.ActionTargets: "4"}), policy, "is not a JSON object of counts"},
		{"a negative count", action(4, map[string]any{plugin.ActionTargets: `{"l4":-1}`}), policy, "the count of variant l4 is -1"},
		{"no index", action(4, map[string]any{plugin.ActionIndex: "x"}), policy, `is "x": must be an index`},
		{"below -1", action(-2, nil), policy, "the count is -2"},
		{"no model", action(4, nil), map[string]string{}, "model is missing"},
		{"a key that nobody knows", action(4, nil), map[string]string{"model": "m", "model_name": "n"}, "model_name is an unknown key: must be one of model"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl, p := targetWorld(t)
			require.ErrorContains(t, p.Scale(c.action, c.config), c.want)
			require.Empty(t, ctl.asked)
		})
	}
}

func TestDryRunScalesNothing(t *testing.T) {
	ctl, p := targetWorld(t)
	a := action(9, map[string]any{plugin.ActionTargets: `{"l4":9}`})
	a.SetDryRun()
	noOp(t, p.Scale(a, policy))
	noOp(t, p.Scale(action(9, nil), map[string]string{"model": "m", "dry-run": "true"}))
	require.Empty(t, ctl.asked)
}

func TestLongReasonIsCutAtARune(t *testing.T) {
	ctl, p := targetWorld(t)
	a := action(4, nil)
	a.Reason = strings.Repeat("é", api.MaxScaleReason)
	require.NoError(t, p.Scale(a, policy))
	require.LessOrEqual(t, len(ctl.asked[0].Reason), api.MaxScaleReason)
	require.True(t, strings.HasSuffix(ctl.asked[0].Reason, "é..."))
}

func TestTargetConfig(t *testing.T) {
	p := plugin.NewTarget(plugin.TargetConfig{})
	require.ErrorContains(t, p.SetConfig(map[string]string{"controller": "none"}), "must be a controller, because the target scales through it")
	require.ErrorContains(t, p.SetConfig(map[string]string{"controler": "http://a"}), "controler is an unknown key")
	require.ErrorContains(t, p.SetConfig(map[string]string{"controller": "ftp://a"}), "must be a URL")
	_, err := p.Status(policy)
	require.ErrorContains(t, err, "not configured")
	require.NoError(t, p.SetConfig(map[string]string{"controller": "127.0.0.1:4750"}))
	info, err := plugin.NewTarget(plugin.TargetConfig{Name: "remuda-autoscaler"}).PluginInfo()
	require.NoError(t, err)
	require.Equal(t, "remuda-autoscaler", info.Name)
	require.Equal(t, sdk.PluginTypeTarget, info.PluginType)
}

func (c *controller) Policies(context.Context, api.QueryOptions) ([]api.Policy, api.QueryMeta, error) {
	return nil, api.QueryMeta{}, nil
}
