package server_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/state"
)

func TestUnknownNames(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{world: withPools})[0]
	m.applied("m")
	before := m.store.View().Index()
	for _, c := range []struct{ method, path, body, text string }{
		{"GET", "/v1/model/x", "", `model "x" does not exist`},
		{"GET", "/v1/model/x/file", "", `model "x" does not exist`},
		{"DELETE", "/v1/model/x", "", `model "x" does not exist`},
		{"PUT", "/v1/model/x/stop", "", `model "x" does not exist`},
		{"PUT", "/v1/model/x/start", "", `model "x" does not exist`},
		{"PUT", "/v1/model/x/scale", `{"Replicas":1}`, `model "x" does not exist`},
		{"PUT", "/v1/model/m/scale", `{"Replicas":1,"Variant":"z"}`, `no variant "z"`},
		{"PUT", "/v1/model/x/pool/cloud", `{"Replicas":1}`, `model "x" does not exist`},
		{"PUT", "/v1/model/m/pool/nowhere", `{"Replicas":1}`, `pool "nowhere" does not exist: the agent config has "cloud", "off"`},
		{"GET", "/v1/pipeline/x", "", `pipeline "x" does not exist`},
		{"DELETE", "/v1/pipeline/x", "", `pipeline "x" does not exist`},
		{"GET", "/v1/key/x", "", `key "x" does not exist: see "remuda key list"`},
		{"DELETE", "/v1/key/x", "", `key "x" does not exist`},
		{"POST", "/v1/key/x/rotate", `{"Grace":"1h"}`, `key "x" does not exist`},
		{"PUT", "/v1/key/x", `{"Weight":1,"Priority":5,"MaxPriority":5,"CAS":7}`, `key "x" does not exist`},
		{"PUT", "/v1/model/x/scale", `{"Variants":{"a":1}}`, `model "x" does not exist`},
		{"PUT", "/v1/model/m/scale", `{"Variants":{"a":1,"z":1}}`, `no variant "z"`},
		{"PUT", "/v1/plan", `{"Scale":{"x":1}}`, `model "x" does not exist`},
		{"PUT", "/v1/plan", `{"Evict":{"Replica":"m:a:9"}}`, `replica "m:a:9" does not exist`},
		{"PUT", "/v1/dedicated", `{"Models":{"x":1}}`, `model "x" does not exist`},
		{"PUT", "/v1/evict", `{"Model":"x"}`, `model "x" does not exist`},
		{"PUT", "/v1/evict", `{"Replica":"m:a:9"}`, `replica "m:a:9" does not exist`},
		{"GET", "/v1/replicas?model=x", "", `model "x" does not exist`},
		{"GET", "/v1/replica/m:a:9", "", `replica "m:a:9" does not exist`},
		{"GET", "/v1/node/x", "", `node "x" does not exist`},
		{"GET", "/v1/queue/x", "", `model "x" does not exist`},
		{"POST", "/v1/request/x/kill", "", `request "x": no gateway reports to the controller`},
		{"POST", "/v1/gateway/x/drain", "", `gateway "x" does not report to the controller`},
		{"PUT", "/v1/node/x/cordon", `{"GPU":"g","On":true}`, `node "x" does not exist`},
		{"PUT", "/v1/node/n1/cordon", `{"GPU":"g","On":true}`, `no GPU "g"`},
		{"DELETE", "/v1/acl/token/x", "", `token "x" does not exist`},
		{"DELETE", "/v1/operator/raft/peer/x", "", `server "x" does not exist`},
		{"PUT", "/v1/operator/raft/promote/x", "", `server "x" does not exist`},
		{"PUT", "/v1/operator/raft/transfer-leader?id=x", "", `server "x" does not exist`},
	} {
		resp, body := m.raw(c.method, c.path, "", c.body)
		require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s %s: %s", c.method, c.path, body)
		e := refused(t, body)
		require.Equal(t, api.CodeNotFound, e.Code)
		require.Contains(t, e.Message, c.text)
	}
	require.Equal(t, before, m.store.View().Index(), "not even an entry in the log")
}

func TestWrongBodies(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{world: withPools})[0]
	m.applied("m")
	before := m.store.View().Index()
	for _, c := range []struct{ path, body, text string }{
		{"/v1/model/m/scale", "", "it is empty, and must be a JSON object"},
		{"/v1/model/m/scale", " \n", "it is empty, and must be a JSON object"},
		{"/v1/model/m/scale", "{\n  \"Replicas\": 1,\n  oops\n}", "invalid character 'o' looking for beginning of object key string"},
		{"/v1/model/m/scale", `{"Replicas": 1`, "unexpected end of JSON input"},
		{"/v1/model/m/scale", "{\"Replicas\": 1}\n{}", "invalid character '{' after top-level value"},
		{"/v1/model/m/scale", "{\n\"Replicas\": 1,\n \"Replica\": 2}", `body of PUT /v1/model/{model}/scale: unknown field "Replica"`},
		{"/v1/model/m/scale", "{\n \"Replicas\": \"two\"}", `field "Replicas": is a JSON string: must be a whole number`},
		{"/v1/model/m/scale", `{"Replicas": 1.5}`, `field "Replicas": is a JSON number 1.5: must be a whole number`},
		{"/v1/model/m/scale", `{"Variant":1,"Reason":[],"Replicas":"two","CAS":-1,"x":1}`, `field "CAS": is a JSON number -1: must be a whole number of at least 0; field "Reason": is a JSON array: must be a string; field "Replicas": is a JSON string: must be a whole number; field "Variant": is a JSON number: must be a string; unknown field "x"`},
		{"/v1/plan", `{"Evict":{"Model":1}}`, `field "Evict": Model is a JSON number: must be a string`},
		{"/v1/plan", `{"Evict":{"Modle":"m"}}`, `field "Evict": unknown field "Modle"`},
		{"/v1/model/m/scale", `[1]`, "is a JSON array: must be an object"},
		{"/v1/model/m/scale", `{}`, `"Replicas" is missing`},
		{"/v1/model/m/scale", `null`, `is a JSON null: must be an object`},
		{"/v1/model/m/scale", `{"Replicas":null,"Reason":null}`, `field "Reason" is null: set a value or leave it out; field "Replicas" is null`},
		{"/v1/model/m/scale", `{"Replicas":5}`, "5 replicas: must be 0 to 4, the model's max"},
		{"/v1/model/m/scale", `{"Replicas":-1}`, "-1 replicas: must be 0 to 4, the model's max"},
		{"/v1/model/m/scale", `{"Replicas":1,"Origin":"me"}`, `origin is "me": must be operator or autoscaler`},
		{"/v1/model/m/scale", `{"Replicas":1,"Origin":"controller"}`, `origin is "controller": must be operator or autoscaler`},
		{"/v1/model/m/scale", `{"Variants":null}`, `field "Variants" is null: set a value or leave it out`},
		{"/v1/model/m/scale", `{"Variants":{}}`, "no variants are set"},
		{"/v1/model/m/scale", `{"Variants":{"a":1},"Replicas":1}`, `field "Variants" is set together with "Variant" or "Replicas"`},
		{"/v1/model/m/scale", `{"Variants":{},"Replicas":1}`, `field "Variants" is set together with "Variant" or "Replicas"`},
		{"/v1/model/m/scale", `{"Variants":{"a":1},"Variant":"a"}`, `field "Variants" is set together with "Variant" or "Replicas"`},
		{"/v1/model/m/scale", `{"Variants":{"a":-1,"b":5}}`, `-1 replicas of variant "a": must be 0 to 4, the model's max; 5 replicas of variant "b": must be 0 to 4`},
		{"/v1/model/m/scale", `{"Variants":{"a":3,"b":2}}`, "replicas is 5 (3 of a, 2 of b): must be 0 to 4, the model's min and max"},
		{"/v1/model/m/scale", `{"Variants":{"a":1.5}}`, `field "Variants": is a JSON number 1.5: must be a whole number`},
		{"/v1/model/m/scale", `{"Replicas":1,"Reason":"` + strings.Repeat("x", 1025) + `"}`, `"Reason" is 1025 bytes: must be at most 1024 bytes`},
		{"/v1/evict", `{}`, "exactly one must be set"},
		{"/v1/evict", `{"Replica":"a","Model":"b"}`, "exactly one must be set"},
		{"/v1/evict", `{"Model":"m","To":"TEPID"}`, `"To" is "TEPID": must be "warm", "cold" or empty`},
		{"/v1/plan", `{"Evict":{}}`, "exactly one must be set"},
		{"/v1/plan", `{"Evict":{"Model":"m","To":"TEPID"}}`, `"To" is "TEPID": must be "warm", "cold" or empty`},
		{"/v1/plan", `{"Files":[{"Text":"model"}]}`, "model.hcl:1:"},
		{"/v1/plan", `{"Scale":{"m":9}}`, "must be 0 to 4, the model's max"},
		{"/v1/plan", `{"Scale":{"m":"1"}}`, `field "Scale": is a JSON string: must be a whole number`},
		{"/v1/dedicated", `{}`, `"Models" is missing`},
		{"/v1/dedicated", `{"Models":{}}`, `"Models" is empty`},
		{"/v1/dedicated", `{"Models":{"m":0}}`, `model "m": dedicated replicas is 0: must be 1 to 4, the model's max`},
		{"/v1/dedicated", `{"Models":{"m":5}}`, `model "m": dedicated replicas is 5`},
		{"/v1/dedicated/schedule", `{"File":""}`, `"File" is empty`},
		{"/v1/dedicated/schedule", `{"File":"timezone = 1"}`, "schedule.hcl:1:12: timezone is 1"},
		{"/v1/model/m/pool/cloud", `{}`, `"Replicas" is missing`},
		{"/v1/model/m/pool/cloud", `{"Replicas":5}`, "5 replicas in pool \"cloud\": must be 0 to 4, the model's max"},
		{"/v1/node/n1/cordon", `{"GPU":"g","On":false,"Reason":"x"}`, `field "Reason" is "x": must be empty if On is false`},
		{"/v1/node/n1/cordon", `{"gpu":"g"}`, `"On" is missing`},
		{"/v1/switch/pause-reconcile", `{}`, `"Value" is missing`},
		{"/v1/switch/pause-reconcile", `{"Value":1}`, `field "Value": is a JSON number: must be a string`},
		{"/v1/switch/pause-reconcile", `{"Value":"x","CAS":-1}`, `field "CAS": is a JSON number -1: must be a whole number of at least 0`},
		{"/v1/gateway/report", `{"Gateway":"","Index":1,"Replicas":[{"Name":"nonsense","InFlight":-1}]}`, "in flight is -1"},
		{"/v1/model/m/stop", `{"now":true}`, "takes no body"},
		{"/v1/models", `{"File":"x"}`, `body of PUT /v1/models: unknown field "File"`},
		{"/v1/models", `{}`, `field "Files" is missing`},
		{"/v1/models", `{"Files":[]}`, `field "Files" is empty: at least one model file is required`},
		{"/v1/models", `{"Files":[{"Name":"a.hcl","Text":"model"},{"Name":"b.hcl","Text":"model"}]}`, "b.hcl:1:"},
		{"/v1/models", `{"Files":[{"Text":"model \"m\" {\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"j.hcl\"\n}\n}\n"}]}`, "is \"j.hcl\": cannot read the file: the request does not have it"},
		{"/v1/plan", `{"Jobs":{"j.hcl":""}}`, `field "Files" is empty`},
		{"/v1/models", `{"CAS":{"m":"1"}}`, `field "CAS": is a JSON string: must be a whole number of at least 0`},
		{"/v1/key/k", `{}`, `field "MaxPriority" is missing; field "Priority" is missing; field "Weight" is missing`},
		{"/v1/key/k", `{"Weight":0,"Priority":7,"MaxPriority":5,"Concurrency":-1,"Models":["a*b"]}`, "key \"k\": model \"a*b\": a '*' is allowed at the end only\nkey \"k\": weight is 0: must be 0.001 to 1000\nkey \"k\": priority is 7: must be at most the max priority, which is 5\nkey \"k\": concurrency is -1"},
		{"/v1/key/k", `{"Weight":1,"Priority":5,"MaxPriority":5,"Secret":"x"}`, `unknown field "Secret"`},
		{"/v1/key/k", `{"Weight":1,"Priority":5,"MaxPriority":5,"ExpiresAt":"soon"}`, `field "ExpiresAt"`},
		{"/v1/key/other", `{"Weight":1,"Priority":5,"MaxPriority":5}`, `key name "other" is reserved`},
		{"/v1/key/a%20b", `{"Weight":1,"Priority":5,"MaxPriority":5}`, "spaces and control characters are not allowed"},
		{"/v1/gateway/report", `{"Gateway":"g","Index":1,"Usage":[{"Key":"","Model":"m","Day":"today","Requests":-1,"PromptTokens":0,"CachedTokens":0,"CompletionTokens":0,"EstimatedTokens":0}]}`, "usage: day is \"today\""},
		{"/v1/gateway/report", `{"Gateway":"g","Index":1,"Sequence":1,"Shares":[{"Kind":"slots","Name":"","Of":1,"Held":0,"Used":0,"Need":-1}]}`, "share of slots \"\": name is empty"},
		{"/v1/operator/snapshot", "", "snapshot is damaged"},
	} {
		resp, body := m.raw(http.MethodPut, c.path, "", c.body)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, "%s %s: %s", c.path, c.body, body)
		e := refused(t, body)
		require.Equal(t, api.CodeBadRequest, e.Code)
		require.Contains(t, e.Message, c.text, c.body)
	}
	// A token's role is looked at by the state; all that is wrong is told at once.
	resp, body := m.raw(http.MethodPut, "/v1/gateway/report", "", `{"Gateway":"","Index":1,"Replicas":[{"Name":"nonsense","InFlight":-1}]}`)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	for _, text := range []string{"gateway: ", "nonsense", "-1"} {
		require.Contains(t, refused(t, body).Message, text)
	}
	require.Equal(t, before, m.store.View().Index(), "not even an entry in the log")
}

func TestWrongQueries(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	for query, texts := range map[string][]string{
		"index=x":             {`index is "x"`},
		"index=-1":            {`index is "-1"`},
		"index=1&wait=soon":   {`wait is "soon"`},
		"index=1&wait=-1s":    {"wait is -1s: must be more than 0s"},
		"wait=11m":            {"wait is 11m: must be more than 0s and at most 10m0s"},
		"stale=maybe":         {`stale is "maybe"`},
		"index=1&index=2":     {`duplicate parameter "index": 2 times`},
		"index=x&wait=y&of=z": {`index is "x"`, `wait is "y"`, `unknown parameter "of" of GET /v1/replicas`},
		"index=%zz":           {"query: "},
		"a;b":                 {"query: "},
	} {
		resp, body := m.raw(http.MethodGet, "/v1/replicas?"+query, "", "")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, "%s: %s", query, body)
		for _, text := range texts {
			require.Contains(t, refused(t, body).Message, text, query)
		}
	}
	for _, limit := range []string{"0", "-1", "x", "4097"} {
		resp, body := m.raw(http.MethodGet, "/v1/decisions?limit="+limit, "", "")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
		require.Contains(t, refused(t, body).Message, fmt.Sprintf("limit is %q: must be 1 to 4096", limit))
	}
	_, body := m.raw(http.MethodGet, "/v1/usage?by=week", "", "")
	require.Contains(t, refused(t, body).Message, `by is "week": must be key, model or day`)
	_, body = m.raw(http.MethodGet, "/v1/usage?days=93", "", "")
	require.Contains(t, refused(t, body).Message, `days is "93": must be 1 to 92`)
	_, body = m.raw(http.MethodDelete, "/v1/key/k?cas=x", "", "")
	require.Contains(t, refused(t, body).Message, `cas is "x"`)
	_, body = m.raw(http.MethodGet, "/v1/decisions?replica=x", "", "")
	require.Contains(t, refused(t, body).Message, "bad replica name")
	_, body = m.raw(http.MethodGet, "/v1/decisions?replica=m:a:1&model=n", "", "")
	require.Contains(t, refused(t, body).Message, `replica "m:a:1" does not belong to model "n"`)
	_, body = m.raw(http.MethodDelete, "/v1/model/m?cas=x", "", "")
	require.Contains(t, refused(t, body).Message, `cas is "x"`)
}

// zeros is a body without an end, that counts what was taken of it.
type zeros struct {
	left  int64
	taken atomic.Int64
}

func (z *zeros) Read(b []byte) (int, error) {
	n := min(int64(len(b)), z.left)
	if n == 0 {
		return 0, io.EOF
	}
	for i := range b[:n] {
		b[i] = ' '
	}
	z.left -= n
	z.taken.Add(n)
	return int(n), nil
}

func TestABodyOf100MiB(t *testing.T) {
	m := one(t)
	const size = 100 << 20
	for name, length := range map[string]int64{"its length is said": size, "its length is not said": -1} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			body := &zeros{left: size}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, m.url+"/v1/models", io.NopCloser(body))
			require.NoError(t, err)
			req.ContentLength = length
			// A client that is still writing when the answer comes may miss it; one that waits
			// for the go-ahead does not.
			req.Header.Set("Expect", "100-continue")
			resp, err := checked(t).Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, api.CodeTooLarge, refused(t, string(text)).Code)
			runtime.ReadMemStats(&after)
			require.Less(t, body.taken.Load(), int64(16<<20), "the body was not read")
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20), "memory")
		})
	}
}

func TestAModelFileWithSeveralFaults(t *testing.T) {
	t.Parallel()
	m := one(t)
	before := m.store.View().Index()
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: []api.SourceFile{{Name: "llama.hcl", Text: `model "a b" {
  max      = -1
  priority = 500
  variant "v" {
    gpu {
      count = 0
    }
    memory = "much"
    job    = "missing.hcl"
  }
}
`}}})
	e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "llama.hcl:1:")
	lines := map[int]bool{}
	for _, f := range e.Faults {
		require.Equal(t, "llama.hcl", f.File)
		require.NotEmpty(t, f.Text)
		require.Positive(t, f.Column)
		require.Contains(t, e.Message, fmt.Sprintf("llama.hcl:%d:%d: %s", f.Line, f.Column, f.Text))
		lines[f.Line] = true
	}
	for _, line := range []int{1, 2, 3, 6, 8, 9} {
		require.True(t, lines[line], "line %d: %s", line, e.Message)
	}
	require.Equal(t, before, m.store.View().Index(), "not even an entry in the log")
	require.Zero(t, m.nomad.calls, "Nomad is not asked about a file that is wrong")
}

func TestNomadRefuses(t *testing.T) {
	t.Parallel()
	m := one(t)
	before := m.store.View().Index()
	m.nomad.check = func(_ state.Model, v state.Variant) (string, error) {
		return "", nomad.JobFaults{"variant " + v.Name + " is no good", "and more"}
	}
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m"))})
	e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `model "m": variant "a": `)
	for _, text := range []string{"variant a is no good", "variant b is no good", "and more"} {
		require.Contains(t, e.Message, text)
	}
	m.nomad.check = func(state.Model, state.Variant) (string, error) {
		return "", fmt.Errorf("check: %w", nomad.ErrUnreachable)
	}
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m"))})
	e = requireError(t, err, http.StatusServiceUnavailable, api.CodeNomad, "check: cannot reach Nomad")
	require.Positive(t, e.RetryAfter)
	m.nomad.check = func(state.Model, state.Variant) (string, error) { return "", errors.New("a bug") }
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m"))})
	requireError(t, err, http.StatusInternalServerError, api.CodeInternal, "a bug")
	require.Equal(t, before, m.store.View().Index(), "not even an entry in the log")
}

func TestStaleCAS(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	now, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	_, err = m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3, CAS: ptr(now.Model.ModifyIndex)})
	require.NoError(t, err)
	_, err = m.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "1", CAS: ptr(uint64(0))})
	require.NoError(t, err)
	before := m.store.View().Index()

	stale := now.Model.ModifyIndex
	_, err = m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1, CAS: ptr(stale)})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed")
	requireError(t, m.client.DeleteModel(t.Context(), "m", ptr(stale)), http.StatusConflict, api.CodeConflict, "has changed")
	_, err = m.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "2", CAS: ptr(uint64(0))})
	requireError(t, err, http.StatusConflict, api.CodeConflict, `switch "pause-reconcile" already exists`)
	for _, dry := range []bool{true, false} {
		both := file("m", `"full"`, `"manual"`) + file("n")
		_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(both), DryRun: dry, CAS: map[string]uint64{"m": stale, "n": 7}})
		e := requireError(t, err, http.StatusConflict, api.CodeConflict, `model "m" has changed`)
		require.Contains(t, e.Message, `model "n" does not exist`, "all of it is said at once")
		_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(both), DryRun: dry, CAS: map[string]uint64{"m": 0}})
		requireError(t, err, http.StatusConflict, api.CodeConflict, `model "m" already exists at index 6`)
		_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(both), DryRun: dry, CAS: map[string]uint64{"x": 1}})
		requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `CAS lists "x", which the file does not define`)
	}
	require.Equal(t, before, m.store.View().Index(), "not even an entry in the log")
}

func TestSnapshotsThatAreNoGood(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	var saved bytes.Buffer
	require.NoError(t, m.client.SaveSnapshot(t.Context(), &saved, api.QueryOptions{}))
	before := m.store.View().Index()
	newer := bytes.Clone(saved.Bytes())
	binary.BigEndian.PutUint32(newer[len("remuda-state"):], state.SnapshotVersion+1)
	changed := bytes.Clone(saved.Bytes())
	changed[len(changed)/2] ^= 1
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"nothing":       {nil, "damaged"},
		"truncated":     {saved.Bytes()[:saved.Len()-1], "damaged"},
		"half":          {saved.Bytes()[:saved.Len()/2], "damaged"},
		"one bit":       {changed, "damaged"},
		"something on":  {append(bytes.Clone(saved.Bytes()), 'x'), "after its end"},
		"newer version": {newer, "newer version"},
		"other file":    {[]byte(strings.Repeat("x", 1000)), "snapshot is damaged"},
	} {
		_, err := m.client.RestoreSnapshot(t.Context(), bytes.NewReader(c.data))
		e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, c.text)
		require.Contains(t, e.Message, "nothing was changed", name)
	}
	require.Equal(t, before, m.store.View().Index(), "not even an entry in the log")
	require.NotNil(t, m.store.View().Model(nil, "m"))

	info, err := m.client.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()))
	require.NoError(t, err)
	require.Equal(t, int64(saved.Len()), info.Bytes)
	require.Equal(t, 1, info.Rows["models"])
}

func TestASnapshotThatIsTooLong(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{server: limited})[0]
	for _, said := range []bool{true, false} {
		var body io.Reader = strings.NewReader("remuda-state" + strings.Repeat("\x00", 10<<10))
		if !said {
			body = struct{ io.Reader }{body}
		}
		resp, text := m.send(http.MethodPut, "/v1/operator/snapshot", "", body)
		if said {
			require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, text)
		} else {
			require.Contains(t, []int{http.StatusRequestEntityTooLarge, http.StatusBadRequest}, resp.StatusCode, text)
		}
	}
	var e api.Error
	resp, text := m.raw(http.MethodPut, "/v1/models", "", `{"Files":[{"Text":"`+strings.Repeat("x", 2000)+`"}]}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	require.NoError(t, json.Unmarshal([]byte(text), &e))
	require.Contains(t, e.Message, "1024 bytes")
	// A gateway has more to say.
	resp, text = m.raw(http.MethodPut, "/v1/gateway/report", "", `{"Gateway":"g","Index":1,"Replicas":[]`+strings.Repeat(" ", 2000)+`}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, text)
}
