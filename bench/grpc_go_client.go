// A program that makes calls with grpc-go, as a user's client does: with a deadline and metadata.
// Its own CPU is not counted. bench/load.py describes the arguments and the log.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
)

// raw replaces the codec of protobuf: the message is a file's bytes.
type raw struct{}

func (raw) Name() string                              { return "proto" }
func (raw) Marshal(value interface{}) ([]byte, error) { return *value.(*[]byte), nil }
func (raw) Unmarshal(data []byte, value interface{}) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	encoding.RegisterCodec(raw{})
	address, method, body := os.Args[1], os.Args[2], os.Args[3]
	size, count, connections, rate := number(os.Args[4]), number(os.Args[5]), number(os.Args[6]), number(os.Args[7])
	message, err := os.ReadFile(body)
	if err != nil {
		log.Fatal(err)
	}
	message = message[5:]
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')

	lines := make([]string, count)
	begin := time.Now()
	var group sync.WaitGroup
	for first := 0; first < connections; first++ {
		group.Add(1)
		go func(first int) {
			defer group.Done()
			connection, err := grpc.Dial(address, grpc.WithInsecure())
			if err != nil {
				log.Fatal(err)
			}
			defer connection.Close()
			for i := first; i < count; i += connections {
				time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				start := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				ctx = metadata.AppendToOutgoingContext(ctx, "x-tenant", "benchmark")
				var answer []byte
				err := connection.Invoke(ctx, method, &message, &answer)
				cancel()
				if err != nil {
					log.Fatal(err)
				}
				if len(answer)+5 != size {
					log.Fatalf("received a message of %d bytes, expected %d", len(answer), size)
				}
				lines[i] = fmt.Sprintf("%d\t200\t%d\n", start.UnixNano()/1000, time.Since(start).Nanoseconds()/1000)
			}
		}(first)
	}
	group.Wait()
	file, err := os.Create(os.Args[8])
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	for _, line := range lines {
		file.WriteString(line)
	}
}
