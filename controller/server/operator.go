package server

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

func (s *Server) raftConfiguration(*request, *state.View, memdb.WatchSet) (answer, error) {
	members, err := s.cfg.Raft.Members()
	if err != nil {
		return answer{}, err
	}
	leader := s.cfg.Raft.Leader()
	return answer{value: api.RaftConfiguration{Servers: list(members, func(m raft.Member) api.RaftServer {
		return api.RaftServer{ID: m.ID, Address: m.Address, API: m.API, Leader: m.ID == leader.ID, Voter: m.Voter, FeatureLevel: m.FeatureLevel, PromotionBlocked: m.PromotionBlocked}
	})}}, nil
}

// member returns a server of the cluster and the number of voters.
func (s *Server) member(id string) (m raft.Member, voters int, err error) {
	members, err := s.cfg.Raft.Members()
	if err != nil {
		return m, 0, err
	}
	i := slices.IndexFunc(members, func(m raft.Member) bool { return m.ID == id })
	if i < 0 {
		return m, 0, notFound("server %q does not exist: see \"remuda raft list-peers\"", id)
	}
	m = members[i]
	return m, len(slices.DeleteFunc(members, func(m raft.Member) bool { return !m.Voter })), nil
}

func (s *Server) removePeer(rq *request, _ *state.View) (answer, error) {
	id := rq.PathValue("id")
	m, voters, err := s.member(id)
	if err != nil {
		return answer{}, err
	}
	if m.Voter && voters == 1 {
		return answer{}, conflict("server %s is the only voter: cannot remove it", id)
	}
	if err := s.cfg.Raft.RemovePeer(rq.ctx, id); err != nil {
		return answer{}, err
	}
	s.log.Info("server removed", "id", id, "by", by(rq.token))
	return answer{}, nil
}

func (s *Server) promotePeer(rq *request, _ *state.View) (answer, error) {
	id := rq.PathValue("id")
	m, _, err := s.member(id)
	if err != nil {
		return answer{}, err
	}
	if m.Voter {
		return answer{}, conflict("server %s is already a voter", id)
	}
	if err := s.cfg.Raft.Promote(rq.ctx, id); err != nil {
		return answer{}, err
	}
	s.log.Info("server promoted to a voter", "id", id, "by", by(rq.token))
	return answer{}, nil
}

func (s *Server) transferLeadership(rq *request, _ *state.View) (answer, error) {
	id := rq.query.Get("id")
	m, voters, err := s.member(cmp.Or(id, s.cfg.Raft.ID()))
	switch {
	case err != nil:
		return answer{}, err
	case id == s.cfg.Raft.ID() && voters > 1:
		return answer{}, conflict("server %s is already the leader", id)
	case !m.Voter:
		return answer{}, conflict("server %s is not a voter: promote it first (remuda raft promote)", id)
	case voters == 1:
		return answer{}, conflict("this is the only voter: there is no other server to transfer leadership to")
	}
	if err := s.cfg.Raft.TransferLeadership(rq.ctx, id); err != nil {
		return answer{}, err
	}
	s.log.Info("leadership transferred", "to", id, "by", by(rq.token))
	return answer{}, nil
}

func (s *Server) saveSnapshot(_ *request, v *state.View, _ memdb.WatchSet) (answer, error) {
	return answer{contentType: contentBytes, stream: func(w io.Writer) error {
		_, err := s.cfg.Raft.WriteSnapshot(v, w)
		return err
	}}, nil
}

func (s *Server) restoreSnapshot(rq *request, _ *state.View) (answer, error) {
	info, err := s.cfg.Raft.RestoreSnapshot(rq.ctx, rq.stream)
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return answer{}, tooLarge(long.Limit)
	}
	if err != nil {
		return answer{}, err
	}
	s.log.Info("snapshot restored", "index", info.Index, "bytes", info.Bytes, "by", by(rq.token))
	out := api.SnapshotInfo{Version: info.Version, FeatureLevel: info.FeatureLevel, Index: info.Index, Rows: map[string]int{}, Bytes: info.Bytes}
	for table, n := range info.Rows {
		out.Rows[string(table)] = n
	}
	return answer{value: out}, nil
}
