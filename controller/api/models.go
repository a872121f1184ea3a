package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// Model is a model as its file and its operators want it.
type Model struct {
	Name string
	// Variants in the order of the file.
	Variants []Variant
	// Min and Max bound the replicas of all variants together.
	Min, Max int
	// Priority from 0 to 100: a higher one may evict a lower one.
	Priority int `min:"0" max:"100"`
	// Dedicated: its file says so. DedicatedNow: it is dedicated at this time, by its file or
	// by the dedicated set. Replicas of such a model are never evicted under pressure.
	Dedicated, DedicatedNow bool
	// Failover: each replica is a primary with its shadow.
	Failover bool
	// Management is disabled, manual, upscaling or full.
	Management string `enum:"state.Management"`
	// IdleWarm and IdleCold are how long a replica may be idle; 0 is for ever.
	IdleWarm, IdleCold Duration
	// KeepWarm is how many WARM replicas the model has beside those that serve, if there is room.
	KeepWarm int
	// Continuation: a stream that an engine broke off goes on at another one.
	Continuation bool
	// PassAuthorization: engines get the credentials of clients.
	PassAuthorization bool
	// QueueLength is how many requests may wait at a gateway, QueueWait how long one waits at most,
	// and FirstByte how long an engine may take until its answer begins; absent: the gateway's own
	// setting.
	QueueLength int      `json:",omitempty"`
	QueueWait   Duration `json:",omitempty"`
	FirstByte   Duration `json:",omitempty"`
	// TTFTP95 is how long the first token of 95 of 100 requests may take, and ITLP95 the time between 95
	// of 100 pairs of tokens; absent: no goal.
	TTFTP95 Duration `json:",omitempty"`
	ITLP95  Duration `json:",omitempty"`
	// Surge is how many replicas beyond its number a rollout may start, and MinAvailable how many
	// it leaves serving of Target.
	Surge, MinAvailable int
	// Scaling is the model's policy for nomad-autoscaler; absent: its file has none.
	Scaling *Scaling `json:",omitempty"`
	// Hash is of all above, and of the number of replicas in the file.
	Hash string
	// Version is the number of this definition, StableVersion that of the one a rollout
	// falls back on; see Version.
	Version, StableVersion int
	// Desired is its scale, as it was asked for last: how many replicas should run in which
	// pool and of which variant.
	Desired []Share
	// Displaced is the part of Desired that is not to run for now.
	Displaced Displaced `json:",omitzero"`
	// Replicas is the sum of Desired, and Target how many replicas should run now. Where they
	// differ, Bound says why: stopped, displaced, min or max (of the file), dedicated (the
	// dedicated set) or cap (the switch cap-max-replicas).
	Replicas, Target int
	Bound            string `json:",omitempty" enum:"state.Bound"`
	Stopped          bool
	// Rollouts by variant, while one is on its way or was rolled back.
	Rollouts map[string]Rollout `json:",omitempty"`

	CreateIndex, ModifyIndex uint64
}

// Scaling is a model's policy, as its file has it. Its bounds are the model's Min and Max.
type Scaling struct {
	// Strategy is the plugin that decides, such as remuda-capacity.
	Strategy string
	// Interval is the time between two evaluations.
	Interval Duration
	// Settings are the strategy's keys.
	Settings map[string]string `json:",omitempty"`
}

// Policy is a model with a policy in its file.
type Policy struct {
	Model    string
	Min, Max int
	Scaling  Scaling
}

// Share is how many replicas of a model should run in one pool, of one variant.
type Share struct {
	// Pool is an external capacity pool; empty: the controller's own Nomad, or the pool that
	// takes what that has no room for.
	Pool string `json:",omitempty"`
	// Variant, empty: any of the variants that have no share of their own, the cheapest that
	// fits.
	Variant  string `json:",omitempty"`
	Replicas int
}

// Displaced are replicas that were asked for and that the controller or an operator took away.
// They come back. Scaling the model brings them back at once.
type Displaced struct {
	// UntilRoom made room for other models: they come back when there is room, or clients wait.
	UntilRoom []Share `json:",omitempty"`
	// UntilAsked were idle, or evicted by an operator: they come back when clients wait.
	UntilAsked []Share `json:",omitempty"`
}

// Own returns how many replicas of a variant should run now in all pools, and whether the
// variant has a share of its own.
func (m *Model) Own(variant string) (n int, own bool) {
	for _, s := range m.Desired {
		if s.Variant == variant {
			n, own = n+s.Replicas, true
		}
	}
	return n - m.displaced(func(s Share) bool { return s.Variant == variant }), own
}

// In returns how many replicas should run now in an external pool.
func (m *Model) In(pool string) int {
	n := 0
	for _, s := range m.Desired {
		if s.Pool == pool {
			n += s.Replicas
		}
	}
	return n - m.displaced(func(s Share) bool { return s.Pool == pool })
}

func (m *Model) displaced(of func(Share) bool) int {
	n := 0
	for _, s := range slices.Concat(m.Displaced.UntilRoom, m.Displaced.UntilAsked) {
		if of(s) {
			n += s.Replicas
		}
	}
	return n
}

// Limits are what the dedicated set and the switches say of a model's scale. They bound
// Model.Target, whatever was asked for.
type Limits struct {
	// Dedicated is how many replicas the dedicated set keeps at least, 0 where the model is not
	// in it.
	Dedicated int
	// CapMaxReplicas is how many there are at most by the switch cap-max-replicas; absent where
	// it is not set.
	CapMaxReplicas *int `json:",omitempty"`
	// ScalingDisabled: only operators change the scale, by the switch disable-scaling.
	ScalingDisabled bool
	// ScaleToZeroDelay is how long the last replica must be idle before it goes, by the switch
	// scale-to-zero-delay. KeepLastReplica: it never goes, because the switch is never.
	ScaleToZeroDelay Duration
	KeepLastReplica  bool
}

// Variant is one way to run a model. Its job is in the model's file.
type Variant struct {
	Name string
	// GPUModel is what it needs, empty for any; GPUs how many of them per engine.
	GPUModel string
	GPUs     int
	// Memory of each GPU and HostMemory of the node, in bytes.
	Memory, HostMemory int64
	// Weights is how many bytes are loaded, 0: not known. SleepMemory is what a WARM replica
	// still takes of each GPU, and SharedMemory what replicas of one version on the same GPUs take of each
	// of them once, in bytes.
	Weights, SleepMemory, SharedMemory int64
	// Reach is on how many GPUs an engine has a seat, of which it uses GPUs at a time; 0: on
	// as many as it uses.
	Reach int
	// Cost per replica-hour.
	Cost float64
	// Slots of one engine, 0 where the engine says.
	Slots  int
	Engine string
	Hash   string
}

// Rollout is the change of one variant that is on its way, or was taken back.
type Rollout struct {
	// Status is canary, rolling or rolled_back.
	Status string `enum:"state.RolloutStatus"`
	// Version is what is rolled out, or was rolled back.
	Version int
	// Reason is why it was rolled back, or what it waits for.
	Reason string
	Since  time.Time `json:",omitzero"`
}

// Version is one definition of a model, as a model file had it. Versions never change; the
// last six are kept, and those of which replicas exist.
type Version struct {
	// Number counts from 1.
	Number int
	// Time is when it was applied.
	Time time.Time
	// Current: it is the model's. Stable: a rollout falls back on it.
	Current, Stable bool
	// RolledBack is why it was rolled back, if it was rolled back last.
	RolledBack string `json:",omitempty"`
	// Replicas is how many replicas are made from it, COLD ones not counted.
	Replicas int
	// Hash is of the whole definition.
	Hash string
	// Changes are the differences to the version before it that is kept; none for the oldest.
	Changes []Change
}

// RevertRequest returns a model to the definition of an earlier version, as a new version.
type RevertRequest struct {
	// Version is the number of the earlier one, 0: the newest with another definition than
	// the model has.
	Version int `json:",omitempty"`
	// CAS is as that of ScaleRequest.
	CAS *uint64 `json:",omitempty"`
}

// ModelSummary is a model in a list.
type ModelSummary struct {
	Name string
	// Variants are their names.
	Variants []string
	Min, Max int
	// Replicas, Target and Bound are as of Model.
	Replicas   int
	Target     int
	Bound      string `json:",omitempty" enum:"state.Bound"`
	Stopped    bool
	Management string `enum:"state.Management"`
	Dedicated  bool
	// DedicatedNow: it is dedicated at this time, by its file or by the dedicated set.
	DedicatedNow bool
	Failover     bool
	Counts       Counts
	// Rollouts is the status by variant.
	Rollouts map[string]string `json:",omitempty" enum:"state.RolloutStatus"`
	// Unplaceable is why a replica that is missing gets no place, empty if none is missing or
	// one is on its way.
	Unplaceable string `json:",omitempty"`

	CreateIndex, ModifyIndex uint64
}

// Counts are replicas by what they do. Each is counted once.
type Counts struct {
	// Hot ones serve. Warm ones rest, or are on their way there: they do not count against the
	// model's scale. Cold ones have their weights on a node's disk.
	Hot, Warm, Cold int
	// Starting ones are on their way to HOT, also from WARM. Leaving ones are on their way out
	// or to COLD. Failed ones wait to be tried again.
	Starting, Leaving, Failed int
}

// Start is how long the starts of a variant's present definition have taken: a moving average, in
// which the newest one counts for a quarter. 0: none was seen. Starts after a failure are left out.
type Start struct {
	// Cold is from a replica's placement until it served first, whatever had to be fetched. Warm is
	// from the order to wake a WARM one until it served.
	Cold, Warm Duration `json:",omitempty"`
}

// ModelStatus is all about one model.
type ModelStatus struct {
	Model Model
	// Limits bind the planner, operators and the autoscaler.
	Limits Limits
	Counts Counts
	// VariantCounts are the same by variant: one entry for each of the model's variants, and
	// for each that is no more while it has replicas.
	VariantCounts map[string]Counts
	// VariantStarts is how long starts of the model's variants take, as far as any was seen.
	VariantStarts map[string]Start `json:",omitempty"`
	// Unplaceable has the variants of which the leader could place no further replica now, and
	// why: the planner would find no place, also not in external pools or by evicting others, or
	// Nomad does not place one that is there. Who scales chooses another variant meanwhile. It is
	// some seconds old at most, its changes are no reason for a watch to return, and it is absent
	// where there are none, where the answering server does not lead, where Nomad is out of
	// reach, and while the model is stopped.
	Unplaceable map[string]string `json:",omitempty"`
	Replicas    []Replica
	// Decisions are the newest, newest first.
	Decisions []Decision
	// LastScaledAt is when an operator or an autoscaler scaled the model last, as far as the
	// decisions reach back; absent: not within them.
	LastScaledAt time.Time `json:",omitzero"`
	// StatusDescription explains in a sentence or two why the model is as it is.
	StatusDescription string
	// Queue is what gateways said last; absent where none reports to the answering server, as
	// to one that does not lead. Its changes are no reason for a watch to return.
	Queue *Queue `json:",omitempty"`
}

// SourceFile is a file as a person wrote it.
type SourceFile struct {
	// Name is its path. It begins messages, and job files are relative to its directory.
	Name string `json:",omitempty"`
	Text string
}

// ApplyRequest wants models to be as files say.
type ApplyRequest struct {
	// Files are model files.
	Files []SourceFile
	// Jobs are the texts of the job files that they name, by path: as the model file has it,
	// joined to the model file's directory if it is relative.
	Jobs map[string]string `json:",omitempty"`
	// DryRun checks and compares, and changes nothing.
	DryRun bool `json:",omitempty"`
	// CAS has the ModifyIndex of models as the caller knows them, 0 for one that must
	// not exist yet. Models that are not in it are compared with what they are now.
	CAS map[string]uint64 `json:",omitempty"`
}

// ApplyResponse says what became of each model of the file. It happened to all of them
// or to none.
type ApplyResponse struct {
	DryRun bool
	Models []AppliedModel
	// Index is that of the change; 0 where there was none.
	Index uint64
}

// AppliedModel is a model of a file that was applied.
type AppliedModel struct {
	Name string
	// New: it did not exist.
	New bool
	// Unchanged: it is just so already, and nothing was written.
	Unchanged bool
	// Version is the model's now; in a dry run, the one that it has.
	Version int
	Changes []Change
	// Warnings are Nomad's, each with its variant; that the model was rolled back from this
	// definition, so that it is Unchanged; and that the scale is another one than the file's.
	Warnings []string
	// ModifyIndex is the model's now, Replicas its scale.
	ModifyIndex uint64
	Replicas    int
}

// Change is one difference. Old is empty where something is new, New where it is gone;
// a text has changed Lines instead.
type Change struct {
	Path  string
	Old   string   `json:",omitempty"`
	New   string   `json:",omitempty"`
	Lines []string `json:",omitempty"`
	// ReplacesReplicas: running replicas are replaced because of it.
	ReplacesReplicas bool `json:",omitempty"`
	// Text is the whole for people.
	Text string
}

// MaxScaleReason is how long ScaleRequest.Reason may be, in bytes.
const MaxScaleReason = 1024

// ScaleRequest wants another number of replicas: Replicas of the model or of one Variant, or
// Variants.
type ScaleRequest struct {
	// Replicas is how many, unless Variants says so.
	Replicas int
	// Variant, empty: of the model as a whole.
	Variant string `json:",omitempty"`
	// Variants has how many replicas each variant that it names should have: all of them are
	// set at once, or none, and variants that it does not name keep what they have. The model's
	// scale changes by as much, and becomes their sum where all variants are named. Where it is
	// there, Replicas must be 0 and Variant absent.
	Variants map[string]int `json:",omitzero" min:"0"`
	// Reason is a sentence for people, which the decision keeps: MaxScaleReason bytes at most.
	Reason string `json:",omitempty" maxLength:"1024"`
	// Origin is operator or autoscaler; empty: as the token's role says.
	Origin string `json:",omitempty" enum:"operator,autoscaler"`
	// CAS is the model's ModifyIndex as the caller knows it; absent: any.
	CAS *uint64 `json:",omitempty"`
}

// ScalePoolRequest wants so many of a model's replicas in one external capacity pool. They come
// from the controller's own pool as far as it has them, and go back there.
type ScalePoolRequest struct {
	// Replicas is how many should be there.
	Replicas int
	// CAS is as that of ScaleRequest.
	CAS *uint64 `json:",omitempty"`
}

// ScaleResponse says what became of it. The replicas follow; watch the model.
type ScaleResponse struct {
	Model string
	// Variant is the one that was scaled, empty for the model as a whole.
	Variant string `json:",omitempty"`
	// Pool is the external capacity pool that was scaled, empty for the model as a whole.
	Pool string `json:",omitempty"`
	// Current is how many replicas there are that do not go or rest, and Target how many
	// there will be; of the variant or of the pool where there is one.
	Current, Target int
	// Bound is why the model as a whole has another target than was asked for, as of Model.
	Bound string `json:",omitempty" enum:"state.Bound"`
	// Changed: the target is another one than before.
	Changed bool
	// ModifyIndex is the model's now.
	ModifyIndex uint64
	Replicas    []ReplicaOutcome
}

// ReplicaOutcome is where a replica stands.
type ReplicaOutcome struct {
	Name string
	// Tier and Status are as of Replica.
	Tier   string `enum:"state.Tier"`
	Status string `enum:"state.Status"`
	// Error is why it does not come up, empty where nothing failed.
	Error string `json:",omitempty"`
}

// Models lists the models.
func (c *Client) Models(ctx context.Context, q QueryOptions) ([]ModelSummary, QueryMeta, error) {
	return read[[]ModelSummary](ctx, c, "/v1/models", nil, q)
}

// Policies lists the models that have a policy in their files, with it.
func (c *Client) Policies(ctx context.Context, q QueryOptions) ([]Policy, QueryMeta, error) {
	return read[[]Policy](ctx, c, "/v1/policies", nil, q)
}

// Model returns all about one model.
func (c *Client) Model(ctx context.Context, name string, q QueryOptions) (ModelStatus, QueryMeta, error) {
	return read[ModelStatus](ctx, c, "/v1/model/"+url.PathEscape(name), nil, q)
}

// ModelFile returns the model file of a version as it was applied, of the current one if version is
// 0. With a variant it returns the variant's job file.
func (c *Client) ModelFile(ctx context.Context, name string, version int, variant string, q QueryOptions) (string, QueryMeta, error) {
	params := url.Values{}
	if version != 0 {
		params.Set("version", strconv.Itoa(version))
	}
	if variant != "" {
		params.Set("variant", variant)
	}
	b, meta, err := c.bytes(ctx, "/v1/model/"+url.PathEscape(name)+"/file", params, q)
	return string(b), meta, err
}

// ModelVersions lists the versions of a model, the newest first.
func (c *Client) ModelVersions(ctx context.Context, name string, q QueryOptions) ([]Version, QueryMeta, error) {
	return read[[]Version](ctx, c, "/v1/model/"+url.PathEscape(name)+"/versions", nil, q)
}

// RevertModel returns a model to the definition of an earlier version.
func (c *Client) RevertModel(ctx context.Context, name string, r RevertRequest) (AppliedModel, error) {
	return write[AppliedModel](ctx, c, http.MethodPut, "/v1/model/"+url.PathEscape(name)+"/revert", nil, r)
}

// ApplyModels makes models what files say, all of them or none.
func (c *Client) ApplyModels(ctx context.Context, r ApplyRequest) (ApplyResponse, error) {
	return write[ApplyResponse](ctx, c, http.MethodPut, "/v1/models", nil, r)
}

// DeleteModel forgets a model that has no replicas. cas is its ModifyIndex as the
// caller knows it; nil: any.
func (c *Client) DeleteModel(ctx context.Context, name string, cas *uint64) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/model/"+url.PathEscape(name), casParam(cas), nil)
	return err
}

// StopModel lets all replicas of a model drain and end, and starts no new ones.
func (c *Client) StopModel(ctx context.Context, name string) (ScaleResponse, error) {
	return write[ScaleResponse](ctx, c, http.MethodPut, "/v1/model/"+url.PathEscape(name)+"/stop", nil, nil)
}

// StartModel brings a stopped model back to its scale.
func (c *Client) StartModel(ctx context.Context, name string) (ScaleResponse, error) {
	return write[ScaleResponse](ctx, c, http.MethodPut, "/v1/model/"+url.PathEscape(name)+"/start", nil, nil)
}

// Scale changes how many replicas a model, or one of its variants, should have.
func (c *Client) Scale(ctx context.Context, model string, r ScaleRequest) (ScaleResponse, error) {
	return write[ScaleResponse](ctx, c, http.MethodPut, "/v1/model/"+url.PathEscape(model)+"/scale", nil, r)
}

// ScalePool changes how many of a model's replicas should be in an external capacity pool.
func (c *Client) ScalePool(ctx context.Context, model, pool string, r ScalePoolRequest) (ScaleResponse, error) {
	return write[ScaleResponse](ctx, c, http.MethodPut, "/v1/model/"+url.PathEscape(model)+"/pool/"+url.PathEscape(pool), nil, r)
}
