// Package nomadtest is a small Nomad: the part of its HTTP API that the controller
// uses, with real indexes, waiting queries and compare and swap, in memory. It
// schedules nothing; tests say what its nodes and allocations are, and what goes
// wrong.
package nomadtest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Server is a Nomad agent. Its methods may be called from several goroutines.
type Server struct {
	*httptest.Server

	mu      sync.Mutex // guards what follows; never held while a query waits
	index   uint64
	tables  map[string]uint64
	changed chan struct{} // closed and made anew at each change
	nodes   map[string]*api.Node
	jobs    map[string]*api.Job
	allocs  map[string]*api.AllocationListStub
	evals   map[string][]*api.Evaluation
	stats   map[string]func() *api.HostStats
	parse   func(api.JobsParseRequest) (*api.Job, error)
	faults  []string
	broken  func(http.ResponseWriter, *http.Request) bool
	served  []string
	tokens  []string
}

// New starts a server; t ends it.
func New(t testing.TB) *Server {
	s := &Server{index: 10, tables: map[string]uint64{}, changed: make(chan struct{}), nodes: map[string]*api.Node{}, jobs: map[string]*api.Job{},
		allocs: map[string]*api.AllocationListStub{}, evals: map[string][]*api.Evaluation{}, stats: map[string]func() *api.HostStats{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.mu.Lock()
		s.broken = nil
		s.bump("end")
		s.mu.Unlock()
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Break has f answer requests; where it returns false they are served as ever. nil
// mends the server.
func (s *Server) Break(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	s.broken = f
	s.mu.Unlock()
	s.CloseClientConnections()
}

// Served lists the requests so far, each as "METHOD path".
func (s *Server) Served() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.served)
}

// Tokens lists the tokens of the requests so far.
func (s *Server) Tokens() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tokens)
}

// OnParse has f stand in for Nomad's parser of job files.
func (s *Server) OnParse(f func(api.JobsParseRequest) (*api.Job, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parse = f
}

// Parse is what stands in for Nomad's parser.
func (s *Server) Parse(in api.JobsParseRequest) (*api.Job, error) {
	s.mu.Lock()
	parse := s.parse
	s.mu.Unlock()
	return parse(in)
}

// Refuse has every validation find these faults.
func (s *Server) Refuse(faults ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = faults
}

// Restore sets every index back, as a server does that was restored from a snapshot.
func (s *Server) Restore(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = index
	for table := range s.tables {
		s.tables[table] = index
	}
	s.wake()
}

// SetNode adds or replaces a node.
func (s *Server) SetNode(n *api.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.ModifyIndex = s.bump("nodes")
	s.nodes[n.ID] = n
}

// RemoveNode has Nomad forget a node.
func (s *Server) RemoveNode(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bump("nodes")
	delete(s.nodes, id)
}

// SetAllocation adds or replaces an allocation.
func (s *Server) SetAllocation(a *api.AllocationListStub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.ModifyIndex = s.bump("allocs")
	s.allocs[a.ID] = a
}

// GPU is what a node's device plugin tells of one GPU.
type GPU struct {
	UUID string
	// UsedMiB below 0 is not told.
	UsedMiB int64
	At      time.Time
}

// SetMemory has f tell the memory in use on a node's GPUs, each time that it is asked. A
// node without one has no statistics: its client is out of reach.
func (s *Server) SetMemory(node string, f func() []GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats[node] = func() *api.HostStats {
		g := &api.DeviceGroupStats{Vendor: "nvidia", Type: "gpu", Name: "H100", InstanceStats: map[string]*api.DeviceStats{}}
		for _, gpu := range f() {
			v := &api.StatValue{IntNumeratorVal: &gpu.UsedMiB, IntDenominatorVal: new(int64(80_000)), Unit: "MiB"}
			if gpu.UsedMiB < 0 {
				v = &api.StatValue{StringVal: new("N/A"), Unit: "MiB"}
			}
			for seat := range 2 {
				g.InstanceStats[fmt.Sprintf("%s#%d", gpu.UUID, seat)] = &api.DeviceStats{
					Summary: v, Stats: &api.StatObject{Attributes: map[string]*api.StatValue{"Memory state": v}}, Timestamp: gpu.At,
				}
			}
		}
		return &api.HostStats{DeviceStats: []*api.DeviceGroupStats{g}}
	}
}

func (s *Server) statistics(w http.ResponseWriter, node string) {
	s.mu.Lock()
	f := s.stats[node]
	s.mu.Unlock()
	if f == nil {
		http.Error(w, "No path to node", http.StatusNotFound)
		return
	}
	answer(w, 0, f())
}

// SetEvaluations sets a job's evaluations.
func (s *Server) SetEvaluations(job string, evals ...*api.Evaluation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evals[job] = evals
}

// PutJob registers a job, as an operator does.
func (s *Server) PutJob(job *api.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(clone(job))
}

// EditJob changes a job behind the controller's back.
func (s *Server) EditJob(id string, edit func(*api.Job)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	job := clone(s.jobs[id])
	edit(job)
	s.put(job)
}

// Job returns a job, or nil.
func (s *Server) Job(id string) *api.Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return clone(s.jobs[id])
}

func clone(j *api.Job) *api.Job {
	if j == nil {
		return nil
	}
	raw, err := json.Marshal(j)
	if err != nil {
		panic(err) // plain data
	}
	var out api.Job
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return &out
}

// bump and wake need the lock.
func (s *Server) bump(table string) uint64 {
	s.index++
	s.tables[table] = s.index
	s.wake()
	return s.index
}

func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// spec is what makes two jobs the same.
func spec(j *api.Job) [32]byte {
	j = clone(j)
	j.Version, j.JobModifyIndex, j.ModifyIndex, j.CreateIndex, j.SubmitTime, j.Status = nil, nil, nil, nil, nil, nil
	if j.Stop != nil && !*j.Stop {
		j.Stop = nil
	}
	raw, err := json.Marshal(j)
	if err != nil {
		panic(err)
	}
	return sha256.Sum256(raw)
}

func (s *Server) put(job *api.Job) {
	old := s.jobs[*job.ID]
	if old != nil && spec(old) == spec(job) {
		return
	}
	index := s.bump("jobs")
	var version uint64
	created := index
	if old != nil {
		version, created = *old.Version+1, *old.CreateIndex
	}
	job.Version, job.JobModifyIndex, job.ModifyIndex, job.CreateIndex = &version, &index, new(index), &created
	job.SubmitTime = new(time.Now().UnixNano())
	job.Status = new("pending")
	s.jobs[*job.ID] = job
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.served = append(s.served, r.Method+" "+r.URL.Path)
	s.tokens = append(s.tokens, r.Header.Get("X-Nomad-Token"))
	fault := s.broken
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	path, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	jobID, isJob := strings.CutPrefix(path, "job/")
	node, isNode := strings.CutPrefix(path, "node/")
	write := r.Method == http.MethodPut || r.Method == http.MethodPost
	switch {
	case path == "nodes":
		s.list(w, r, "nodes", func() any {
			out := []*api.NodeListStub{}
			for _, n := range s.nodes {
				out = append(out, &api.NodeListStub{ID: n.ID, Name: n.Name, NodePool: n.NodePool, Status: n.Status, ModifyIndex: n.ModifyIndex})
			}
			return out
		})
	case isNode:
		s.read(w, "nodes", func() (any, bool) { n, ok := s.nodes[node]; return n, ok }, "node not found")
	case path == "client/stats":
		s.statistics(w, r.URL.Query().Get("node_id"))
	case path == "allocations":
		s.list(w, r, "allocs", func() any {
			out := []*api.AllocationListStub{}
			for _, a := range s.allocs {
				out = append(out, a)
			}
			return out
		})
	case path == "jobs" && write:
		s.register(w, r)
	case path == "jobs":
		s.list(w, r, "jobs", func() any {
			out := []*api.JobListStub{}
			for _, j := range s.jobs {
				stub := &api.JobListStub{ID: *j.ID, Name: *j.Name, Stop: j.Stop != nil && *j.Stop, Status: *j.Status, JobModifyIndex: *j.JobModifyIndex, SubmitTime: *j.SubmitTime}
				if r.URL.Query().Get("meta") == "true" {
					stub.Meta = j.Meta
				}
				out = append(out, stub)
			}
			return out
		})
	case path == "jobs/parse" && write:
		s.parseJob(w, r)
	case path == "validate/job" && write:
		s.mu.Lock()
		defer s.mu.Unlock()
		answer(w, s.index, api.JobValidateResponse{DriverConfigValidated: true, ValidationErrors: s.faults})
	case isJob && strings.HasSuffix(jobID, "/plan") && write:
		s.plan(w, r)
	case isJob && strings.HasSuffix(jobID, "/evaluations"):
		s.read(w, "evals", func() (any, bool) { return s.evals[strings.TrimSuffix(jobID, "/evaluations")], true }, "")
	case isJob && r.Method == http.MethodDelete:
		s.deregister(w, r, jobID)
	case isJob && r.Method == http.MethodGet:
		s.read(w, "jobs", func() (any, bool) { j, ok := s.jobs[jobID]; return j, ok }, "job not found")
	default:
		http.NotFound(w, r)
	}
}

// list serves a waiting query.
func (s *Server) list(w http.ResponseWriter, r *http.Request, table string, of func() any) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	s.mu.Lock()
	for after > 0 && s.at(table) <= after {
		if 0 < s.at(table) && s.at(table) < after {
			break // Nomad answers at once, too
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			after = 0
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
		if _, ended := s.tables["end"]; ended {
			break
		}
	}
	defer s.mu.Unlock()
	answer(w, s.at(table), of())
}

// at is a table's index; an empty one has the server's first.
// at is 0 for a table that never had anything, as Nomad's.
func (s *Server) at(table string) uint64 { return s.tables[table] }

func (s *Server) read(w http.ResponseWriter, table string, of func() (any, bool), missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := of()
	if !ok {
		http.Error(w, missing, http.StatusNotFound)
		return
	}
	answer(w, s.at(table), v)
}

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var in api.JobRegisterRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Job == nil || in.Job.ID == nil {
		http.Error(w, "job is missing", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.jobs[*in.Job.ID]
	if in.EnforceIndex {
		var have uint64
		if old != nil {
			have = *old.JobModifyIndex
		}
		if have != in.JobModifyIndex {
			http.Error(w, fmt.Sprintf("%s %d: job exists with conflicting job modify index: %d", api.RegisterEnforceIndexErrPrefix, in.JobModifyIndex, have), http.StatusInternalServerError)
			return
		}
	}
	before := s.tables["jobs"]
	s.put(in.Job)
	job := s.jobs[*in.Job.ID]
	out := api.JobRegisterResponse{JobModifyIndex: *job.JobModifyIndex, EvalCreateIndex: *job.JobModifyIndex}
	if s.tables["jobs"] == before {
		// As Nomad does with what has not changed: an evaluation, and the index of
		// the job's last change of any kind.
		*job.ModifyIndex++
		out.JobModifyIndex, out.EvalCreateIndex = *job.ModifyIndex, s.bump("evals")+1
	}
	answer(w, s.index, out)
}

func (s *Server) plan(w http.ResponseWriter, r *http.Request) {
	var in api.JobPlanRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := api.JobPlanResponse{Diff: &api.JobDiff{Type: "Added"}}
	if old := s.jobs[*in.Job.ID]; old != nil {
		out.JobModifyIndex, out.Diff.Type = *old.JobModifyIndex, "Edited"
		if spec(old) == spec(in.Job) {
			out.Diff.Type = "None"
		}
	}
	answer(w, s.index, out)
}

func (s *Server) parseJob(w http.ResponseWriter, r *http.Request) {
	var in api.JobsParseRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	job, err := s.Parse(in)
	if err != nil {
		http.Error(w, "Failed to parse job: "+err.Error(), http.StatusBadRequest)
		return
	}
	answer(w, 0, job)
}

func (s *Server) deregister(w http.ResponseWriter, r *http.Request, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	job := s.jobs[id]
	if job == nil {
		http.Error(w, "job not found", http.StatusNotFound)
		return
	}
	if r.URL.Query().Get("purge") == "true" {
		delete(s.jobs, id)
		s.bump("jobs")
	} else {
		job = clone(job)
		job.Stop = new(true)
		s.put(job)
	}
	answer(w, s.index, api.JobDeregisterResponse{JobModifyIndex: s.index})
}

func answer(w http.ResponseWriter, index uint64, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	w.Header().Set("X-Nomad-LastContact", "0")
	w.Header().Set("X-Nomad-KnownLeader", "true")
	_ = json.NewEncoder(w).Encode(v)
}
