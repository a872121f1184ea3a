package ui

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"remuda/controller/api"
)

const (
	// headerReplica is the gateway's header, or trailer, with the replica that answered.
	headerReplica = "X-Remuda-Replica"
	// headerKey has the API key that the person typed. It is passed on, and kept nowhere.
	headerKey = "X-Remuda-Key"
	// maxChat is the longest conversation in bytes.
	maxChat = 1 << 20
	// chatStuck is how long one write to the browser may take.
	chatStuck = 30 * time.Second
	// eventStream is the type of an answer that comes in pieces.
	eventStream = "text/event-stream"
)

// tryData is what the page shows on which a person chats with a model.
type tryData struct {
	Model string
	// Models are names to choose from, at most maxRows. Replicas are those of Model, as far as they are on
	// a GPU or on the way there.
	Models   []string
	Replicas []replicaRow
	Queue    api.Queue
	// Gateways is how many can be asked.
	Gateways int
}

func loadTry(v *visit) (any, error) {
	v.unwatched()
	d := tryData{Model: v.query.Get("model")}
	gateways, err := v.api.Gateways(v.ctx)
	if err != nil {
		return nil, err
	}
	d.Gateways = len(reachable(gateways))
	if !v.live {
		o, err := v.api.Overview(v.ctx, api.OverviewQuery{Limit: maxRows})
		if err != nil {
			return nil, err
		}
		for _, m := range o.Models {
			d.Models = append(d.Models, m.Name)
		}
	}
	if d.Model == "" {
		return d, nil
	}
	m, _, err := v.api.Model(v.ctx, d.Model, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	if m.Queue != nil {
		d.Queue = *m.Queue
	}
	for _, r := range m.Replicas {
		if r.Status != "cold" && len(d.Replicas) < maxRows {
			d.Replicas = append(d.Replicas, replicaRowOf(r))
		}
	}
	return d, nil
}

// reachable are the gateways that can be asked: they say where, and do not end.
func reachable(all []api.Gateway) []api.Gateway {
	var out []api.Gateway
	for _, g := range all {
		if g.Address != "" && !g.Draining {
			out = append(out, g)
		}
	}
	return out
}

// chat passes a conversation on to a gateway, and the answer back as it comes. Only operators may: a chat
// may wake a model, and evict another one for it. The gateway's own rules for API keys hold beside that.
func (u *UI) chat(w http.ResponseWriter, r *http.Request) {
	v := u.visit(r)
	token, _, err := v.api.SelfToken(v.ctx, api.QueryOptions{})
	var rejected *api.Error
	switch {
	case errors.As(err, &rejected) && rejected.Status == http.StatusNotFound: // no tokens are asked for
	case err != nil:
		chatError(w, statusOf(err), err.Error())
		return
	case token.Role != "operator":
		chatError(w, http.StatusForbidden, fmt.Sprintf("permission denied: the token has the role %s: a chat needs the role operator", token.Role))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		chatError(w, http.StatusBadRequest, "read the conversation: "+err.Error())
		return
	}
	gateways, err := v.api.Gateways(v.ctx)
	if err != nil {
		chatError(w, statusOf(err), err.Error())
		return
	}
	err = errors.New("no gateway reports its address to the controller: is one running?")
	for _, g := range reachable(gateways) {
		var answer *http.Response
		if answer, err = u.ask(v.ctx, g, r.Header.Get(headerKey), body); err == nil {
			defer answer.Body.Close()
			relayChat(w, answer)
			return
		}
	}
	chatError(w, http.StatusBadGateway, err.Error())
}

// ask sends a conversation to a gateway.
func (u *UI) ask(ctx context.Context, g api.Gateway, key string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.Address+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := u.gateways.Do(req)
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return nil, fmt.Errorf("gateway %s: %w: set advertise in its configuration to a URL whose certificate the controller trusts", g.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("gateway %s: %w", g.Name, err)
	}
	return answer, nil
}

// relayChat copies an answer piece by piece. A replica that is known at the end only becomes a comment of
// the stream: scripts see no trailers.
func relayChat(w http.ResponseWriter, answer *http.Response) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind == eventStream {
		h.Set("Content-Type", eventStream)
	}
	if replica := answer.Header.Get(headerReplica); replica != "" {
		h.Set(headerReplica, replica)
	}
	w.WriteHeader(answer.StatusCode)
	control, piece := http.NewResponseController(w), make([]byte, 16<<10)
	write := func(b []byte) error {
		if err := control.SetWriteDeadline(time.Now().Add(chatStuck)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		return control.Flush()
	}
	for {
		n, err := answer.Body.Read(piece)
		if n > 0 && write(piece[:n]) != nil {
			return // The person has left.
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // Only the end of the connection says that the answer is not whole.
		}
	}
	if replica := answer.Trailer.Get(headerReplica); replica != "" {
		_ = write(fmt.Appendf(nil, ": remuda replica=%s\n\n", replica)) // A person who has left needs no name.
	}
}

// chatError answers as a gateway would.
func chatError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": message}}) // a client that is gone needs no error
}
