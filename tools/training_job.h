// The order in which a command that trains begins a run, or goes on with one.
//
// What it trains, and on what, says the class derived from TrainingJob: those of train.cc and train_head.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tapehead/models/training_run.h"
#include "tapehead/tools/command_line.h"
#include "tapehead/tools/run_arguments.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/run_session.h"

namespace tapehead {

class TrainingJob {
 public:
  virtual ~TrainingJob() = default;
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  /// Begins a run, or goes on with the one that --resume names, trains it to its end, and says what came of
  /// it. Throws ValueError for what was asked, before anything is written where that can be told.
  void run();

 protected:
  /// `config`: of a new run what the options say; of one that is there, once it is read, its own. All of them
  /// must outlive the job.
  TrainingJob(Command command, RunArguments& arguments, RunConfig& config)
      : command_(command), arguments_(arguments), config_(config) {}

  // ---- A new run, in this order

  /// Completes the options, and checks what can be checked of them alone.
  virtual void settle() = 0;
  /// Finds or makes what there is to train on. The config is complete then.
  virtual void prepare_data(const RunFolder& folder) = 0;
  /// Makes the run, and leaves in the folder what a later process needs to find its data.
  virtual TrainingRun& begin(const RunFolder& folder) = 0;
  /// Options that config.json does not repeat.
  virtual std::vector<std::string> options_to_leave_out() const { return {}; }

  // ---- Or one that is there

  /// Makes the checkpoint's config the job's, and gives how many steps were made.
  virtual int64_t read_checkpoint(const RunFolder& folder) = 0;
  virtual void open_data(const RunFolder& folder) = 0;
  virtual TrainingRun& go_on(const RunFolder& folder) = 0;

  // ---- In either case

  /// Says what a step takes. Throws ValueError where that is too much.
  virtual MemoryPlan report_memory() const = 0;
  virtual RunDescription describe() = 0;
  /// Writes what a finished run leaves beside its checkpoint, and gives what summary.json is to tell.
  virtual nlohmann::ordered_json finish(const RunFolder& folder, const RunResult& result) const = 0;
  virtual void print_summary(const nlohmann::ordered_json& summary) const = 0;
  /// Says what was asked for in vain, and what was written where.
  virtual void print_places(const RunFolder& folder) const = 0;

  const Command command_;

 private:
  void start();
  void resume();
  void train(RunSession& session, TrainingRun& run, const MemoryPlan& plan);

  RunArguments& arguments_;
  RunConfig& config_;
};

}  // namespace tapehead
