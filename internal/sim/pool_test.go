package sim_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/text"
)

func TestRerank(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var r struct {
		ID, Model string
		Results   []struct {
			Index    int
			Document struct{ Text string }
			Score    float64 `json:"relevance_score"`
		}
		Usage usage
	}
	const body = `{"query":"the quiet horse","documents":["SELECT 42",{"text":"the quiet mare"},"the quiet horse"]`
	s.ok("/v2/rerank", body+`}`, &r)
	require.Len(t, r.Results, 3)
	require.Equal(t, []int{2, 1, 0}, []int{r.Results[0].Index, r.Results[1].Index, r.Results[2].Index})
	require.InDelta(t, 1, r.Results[0].Score, 1e-6)
	require.Equal(t, "the quiet mare", r.Results[1].Document.Text)
	query := text.Count("the quiet horse") + 1
	require.Equal(t, 3*query+text.Count("SELECT 42")+text.Count("the quiet mare")+query-1, r.Usage.Prompt)
	require.Equal(t, r.Usage.Prompt, r.Usage.Total)
	s.ok("/rerank", body+`,"top_n":1}`, &r)
	require.Len(t, r.Results, 1)
	s.refused(http.MethodPost, "/rerank", `{"query":"x","documents":[]}`, http.StatusBadRequest)
	s.refused(http.MethodPost, "/rerank", `{"documents":["x"]}`, http.StatusBadRequest)
	s.refused(http.MethodPost, "/rerank", body+`,"top_n":-1}`, http.StatusBadRequest)
}

func TestScore(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var r struct {
		Object string
		Data   []struct {
			Object string
			Score  float64
		}
	}
	s.ok("/score", `{"text_1":["a horse","a cow"],"text_2":["a horse","the sea"]}`, &r)
	require.Len(t, r.Data, 2)
	require.InDelta(t, 1, r.Data[0].Score, 1e-6)
	require.Less(t, r.Data[1].Score, 0.9)
	s.ok("/v1/score", `{"queries":"a horse","documents":["x","y","z"]}`, &r)
	require.Len(t, r.Data, 3)
	require.Equal(t, "score", r.Data[0].Object)
	e := s.refused(http.MethodPost, "/score", `{"text_1":["a","b"],"text_2":["c"]}`, http.StatusBadRequest)
	require.Contains(t, e.Error.Message, "1:1, 1:N or N:N, got 2:1")
}

func TestClassifyPoolingAndModeration(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var classes struct {
		Data []struct {
			Label   string
			Probs   []float64
			Classes int `json:"num_classes"`
		}
		Usage usage
	}
	s.ok("/classify", `{"input":["a horse","a cow"]}`, &classes)
	require.Len(t, classes.Data, 2)
	require.Equal(t, 2, classes.Data[0].Classes)
	require.InDelta(t, 1, classes.Data[0].Probs[0]+classes.Data[0].Probs[1], 1e-9)
	require.Equal(t, text.Count("a horse")+text.Count("a cow"), classes.Usage.Prompt)

	var pooled struct {
		Data []struct{ Data json.RawMessage }
	}
	s.ok("/pooling", `{"input":"horse river"}`, &pooled)
	var vectors [][]float32
	require.NoError(t, json.Unmarshal(pooled.Data[0].Data, &vectors))
	require.Len(t, vectors, text.Count("horse river"))
	require.Equal(t, text.Embed(modelName, "horse", 8), vectors[0])
	s.ok("/pooling", `{"input":"horse river","encoding_format":"base64"}`, &pooled)
	var coded string
	require.NoError(t, json.Unmarshal(pooled.Data[0].Data, &coded))
	raw, err := base64.StdEncoding.DecodeString(coded)
	require.NoError(t, err)
	require.Len(t, raw, 4*8*len(vectors))

	var moderation struct {
		Results []struct {
			Flagged    bool
			Categories map[string]bool
			Scores     map[string]float64 `json:"category_scores"`
		}
	}
	s.ok("/v1/moderations", `{"input":["So much Violence!","A horse."]}`, &moderation)
	require.True(t, moderation.Results[0].Flagged)
	require.True(t, moderation.Results[0].Categories["violence"])
	require.False(t, moderation.Results[1].Flagged)
	require.Len(t, moderation.Results[1].Scores, 13)
}
