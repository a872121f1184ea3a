package sim

import (
	"encoding/json"
	"net/http"
	"strconv"

	"remuda/internal/sim/openai"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// writeJSON answers with a body that is JSON already. A client that is gone
// cannot be told anything, so write errors are of no use.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func writeValue(w http.ResponseWriter, v any) { writeJSON(w, http.StatusOK, encode(v)) }

// encode is v as JSON.
func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: answers are made of plain values
	}
	return body
}

func writeError(w http.ResponseWriter, e *openai.Error) { writeJSON(w, e.Status, e.JSON()) }
